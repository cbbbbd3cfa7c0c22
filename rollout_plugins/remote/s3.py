"""Find the S3 endpoint that AWS's own tools would use, from the environment or the profile."""

from __future__ import annotations

import os
import re
from configparser import Error, RawConfigParser
from contextlib import suppress
from functools import cache

from rollout_plugins.errors import SetupError
from rollout_plugins.system.remote_runs import local_path

_ADDRESS = re.compile(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", re.IGNORECASE)


def endpoint() -> str:
    """Return the server's address, or "" for Amazon's.

    The address may contain a password by mistake, so it must never be shown.
    """
    source, address = _found()
    if address and not _ADDRESS.fullmatch(address):
        raise SetupError(
            f"{source} is not the address of a server; write it as http://host:9000, without a user and a password: "
            "these are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return address


def _found() -> tuple[str, str]:
    """Return where the address was found, and the address."""
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return "", ""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if address := os.environ.get(name):
            return name, address
    file = str(local_path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"))
    profile = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    return f"endpoint_url of the profile {profile} in {file}", of_profile(file, profile)


@cache
def of_profile(file: str, profile: str) -> str:
    """Return a profile's `endpoint_url` for S3, or for all services, or ""."""
    known = RawConfigParser(strict=False)
    with suppress(OSError, Error, UnicodeDecodeError):
        known.read(file, encoding="utf-8")
    for section in (f"profile {profile}", profile):
        if known.has_section(section):
            services = f"services {known.get(section, 'services', fallback='')}"
            lines = known.get(services, "s3", fallback="").splitlines()
            for_s3 = dict(line.replace(" ", "").split("=", 1) for line in lines if "=" in line)
            return for_s3.get("endpoint_url") or str(known.get(section, "endpoint_url", fallback=""))
    return ""
