"""Secrets of the environment: the values of variables that are called like one, whatever they look like."""

from __future__ import annotations

import os
import re

_NAME = re.compile(
    r"(?i)(?:^|_)(?:KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|CONNECTION_STRING|SAS)"
    r"(?:_(?:ID|JSON|VALUE|BASE64|[0-9]+))?$"
)
_KEY_INSIDE = re.compile(r"(?:AccountKey|SharedAccessSignature)=([^;]{8,})")


def read_secrets() -> dict[str, str]:
    """Each with its variable's name, longest first. Less than eight characters stand in many texts by chance."""
    named = [(value.strip(), name) for name, value in os.environ.items() if _NAME.search(name)]
    inside = [(key, name) for value, name in named for key in _KEY_INSIDE.findall(value)]
    found = sorted({**dict(inside), **dict(named)}.items(), key=lambda pair: len(pair[0]), reverse=True)
    return {secret: name for secret, name in found if len(secret) >= 8}
