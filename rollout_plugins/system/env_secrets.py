"""Read secrets from the environment: the values of variables whose names look like those of secrets."""

from __future__ import annotations

import os
import re

_NAME = re.compile(
    r"(?i)(?:^|_)(?:KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|CONNECTION_STRING|SAS)"
    r"(?:_(?:ID|JSON|VALUE|BASE64|[0-9]+))?$"
)
_KEY_INSIDE = re.compile(r"(?:AccountKey|SharedAccessSignature)=([^;]{8,})")


def read_secrets() -> dict[str, str]:
    """Return each secret with the name of its variable, longest first.

    Values shorter than eight characters are left out, because they match ordinary text by coincidence.
    """
    named = [(value.strip(), name) for name, value in os.environ.items() if _NAME.search(name)]
    inside = [(key, name) for value, name in named for key in _KEY_INSIDE.findall(value)]
    by_length = sorted({**dict(inside), **dict(named)}.items(), key=lambda pair: len(pair[0]), reverse=True)
    return {secret: name for secret, name in by_length if len(secret) >= 8}
