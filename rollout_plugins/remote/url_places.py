"""Parse URLs of remote places, open their filesystems, and explain their errors.

Credentials and endpoints come from where each service's own tools find them. A URL that contains credentials is
refused.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any
from urllib.parse import urlsplit

from rollout_plugins.errors import MissingExtraError, SetupError, need
from rollout_plugins.remote.s3 import endpoint, of_profile
from rollout_plugins.system.env_secrets import read_secrets
from rollout_plugins.system.remote_runs import is_url, local_path

#: For each protocol, the package that fsspec needs and our extra that installs it.
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcs")),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), ("adlfs", "azure")),
    "hf": ("huggingface_hub", "hf"),
}
#: How long S3 may take to respond to a request for a file, and for a list. PyArrow waits for running requests at exit,
#: and tries each three times.
SECONDS, LIST_SECONDS = 5.0, 20.0
_S3, _LOCAL, _WEB = ("s3", "s3a"), ("file", "local"), ("http", "https")
_WHERE = {
    "s3": "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gcs": "GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth application-default login`",
    "azure": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or `az login`",
    "hf": "HF_TOKEN, or `hf auth login`",
}
_DENIED = re.compile(
    r"access.?denied|forbidden|unauthori[sz]ed|\b40[13]\b|invalidaccesskey|failed to authenticate|"
    r"signaturedoesnotmatch|expiredtoken|credential",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"no.?such.?bucket|(bucket|container|repository) ?not ?found|bucket does not exist", re.IGNORECASE
)
_AWAY = re.compile(r"connect|timed? ?out|resolve|unreachable|network", re.IGNORECASE)
#: Advice for what services report. Texts come before error codes such as 403.
_ADVICE = (
    (
        r"slow.?down|too.?many.?requests|throttl|rate.?limit|server.?(is.?)?busy|\b(429|503)\b",
        "it is overloaded, or limits how often it is asked",
    ),
    (
        r"quota|insufficient.?storage|storage.?(full|limit)|free drive|no space left|\b507\b",
        "it is full, or a quota is used up; make room there, or raise the quota",
    ),
    (
        r"time.?too.?skewed|date header too old|reasonable timeframe",
        "this machine's clock differs from the server's; set it",
    ),
    (
        r"AuthorizationHeaderMalformed|PermanentRedirect|MOVED_PERMANENTLY",
        "the bucket is in another region; set AWS_REGION",
    ),
)
#: Names in an error message, which do not matter for the cause.
_NAMES = re.compile(r"(?<!\w)'[^']*'(?!\w)|\w+://\S+")


@dataclass(frozen=True)
class Place:
    """A remote or local folder or file."""

    protocol: str
    """The protocol: `file`, `s3`, `gs`, `hf`, …"""
    path: str
    """The path for the protocol's filesystem."""

    @property
    def url(self) -> str:
        """The URL, safe to show, which opens the place again."""
        return f"{self.protocol}://{self.path.lstrip('/') if not self.is_local else self.path}"

    @property
    def is_local(self) -> bool:
        return self.protocol in _LOCAL

    @property
    def appears_whole(self) -> bool:
        """Whether a file only appears when it is complete, as in object stores."""
        return self.protocol in _PACKAGES

    def inside(self, name: str) -> Place:
        """Return the place of this name, which may contain slashes, inside the folder."""
        return Place(self.protocol, f"{self.path.rstrip('/')}/{name}")

    @cached_property
    def fsspec(self) -> Any:
        """Return the fsspec filesystem, without using the network."""
        package, extra = _PACKAGES.get(self.protocol, ("", ""))
        fsspec = need("fsspec", extra or "remote")
        if package:
            need(package, extra)
        try:
            return fsspec.filesystem(self.protocol)
        except ImportError as error:
            raise MissingExtraError(f"{self.protocol}:// cannot be used: {error}") from None

    @property
    def arrow(self) -> Any:
        """Return a PyArrow filesystem. Arrow's own is preferred, because it runs without the interpreter lock."""
        return self._arrow(SECONDS)

    @property
    def lists(self) -> Any:
        """Return a filesystem for lists, with a longer timeout: listing a large bucket is slow on some servers."""
        return self._arrow(LIST_SECONDS)

    def _arrow(self, seconds: float) -> Any:
        from pyarrow import fs

        if self.is_local:
            return fs.LocalFileSystem()
        if self.protocol in _S3 and hasattr(fs, "S3FileSystem"):
            return _s3(self.path.partition("/")[0], endpoint(), seconds, os.getpid())
        return fs.PyFileSystem(fs.FSSpecHandler(self.fsspec))

    @staticmethod
    def is_missing(error: BaseException) -> bool:
        """Return True if the bucket or repository itself is missing, and not something in it."""
        return bool(_MISSING.search(f"{error} {error.__cause__}"))

    def why(self, error: BaseException) -> str:
        """Explain an error in one line, with what to do and without credentials."""
        # The next client reads the credentials and the bucket's region again.
        _s3.cache_clear()
        of_profile.cache_clear()
        text = without_secrets(" ".join(str(error).split()) or type(error).__name__)
        extra = _PACKAGES.get(self.protocol, ("", ""))[1]
        if self.is_missing(error) or (isinstance(error, FileNotFoundError) and not self.is_local):
            return f"no such bucket or repository exists; create it, or correct the URL ({text})"
        said = _NAMES.sub("", text)
        for pattern, advice in _ADVICE:
            if re.search(pattern, said, re.IGNORECASE):
                return f"{advice} ({text})"
        if isinstance(error, PermissionError) or _DENIED.search(said):
            where = f": {_WHERE[extra]}" if extra in _WHERE else ""
            is_old = "expired" in said.lower()
            what = "the credentials have expired; renew them" if is_old else "access is denied; check the credentials"
            return f"{what}{where} ({text})"
        if isinstance(error, (ConnectionError, TimeoutError)) or _AWAY.search(said):
            also = " and AWS_ENDPOINT_URL" if self.protocol in _S3 else ""
            return f"it cannot be reached; check the network{also} ({text})"
        return text


def place(url: str | os.PathLike[str], what: str = "the URL") -> Place:
    """Parse a URL or local path into a place without opening it. `what` names it in errors."""
    text = os.fspath(url)
    if not text:
        raise SetupError(f"{what} is empty; give a URL, such as s3://bucket/runs, or a folder")
    if not is_url(text):
        if text.partition(":")[0] in _PACKAGES:
            raise SetupError(f"{what} {text!r} has no slashes after the colon; give a URL, such as s3://bucket/runs")
        return Place("file", str(local_path(text).absolute()))
    protocol, _, rest = text.partition(":")
    rest = re.sub("/+", "/", rest) if protocol in _S3 else rest  # Arrow refuses empty names between slashes
    rest = rest.lstrip("/") if protocol not in _LOCAL else "/" + rest.lstrip("/")
    parts = urlsplit(text)
    if parts.password or parts.query or (parts.username and protocol in _WEB):
        raise SetupError(
            f"{what} {without_secrets(text)!r} holds a password, a key or options; leave them out: they come from "
            "the environment and the service's own settings"
        )
    if not rest.strip("/"):
        raise SetupError(f"{what} {text!r} names no bucket or folder; give one, such as s3://bucket/runs")
    _check_protocol(protocol, what, text)
    return Place(protocol, rest.rstrip("/"))


def _check_protocol(protocol: str, what: str, text: str) -> None:
    if protocol in _S3:
        # Refuse a wrong endpoint now and not at its first use.
        endpoint()
    if protocol in (*_LOCAL, *_S3):
        return
    known = need("fsspec", _PACKAGES.get(protocol, ("", "remote"))[1])
    try:
        known.get_filesystem_class(protocol)
    except ValueError:
        accepted = "s3://, gs://, az://, hf://, file:// and what fsspec knows"
        raise SetupError(f"{what} {text!r}: no filesystem is known for {protocol}://; accepted: {accepted}") from None
    except ImportError as error:
        package, extra = _PACKAGES.get(protocol, ("", ""))
        if package:
            need(package, extra)
        raise MissingExtraError(f"{what} {text!r} cannot be used: {error}") from None


@cache
def _s3(bucket: str, address: str, seconds: float, _pid: int) -> Any:
    """Return a filesystem for a bucket. It is cached, because finding the region takes a request; not across forks."""
    from pyarrow import fs

    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region and not address:
        # Without bucket or network, the first use raises an error that says what to do.
        with suppress(OSError):
            region = fs.resolve_s3_region(bucket)
    parts = urlsplit(address)
    where = {"scheme": parts.scheme, "endpoint_override": parts.netloc + parts.path.rstrip("/")} if address else {}
    return fs.S3FileSystem(
        connect_timeout=SECONDS,
        request_timeout=seconds,
        # A small file then takes one request instead of three.
        allow_delayed_open=True,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
        **({"region": region} if region else {}),
        **where,
    )


def without_secrets(text: str) -> str:
    """Return the text without URL signatures, passwords, tokens, and values of secret environment variables."""
    text = re.sub(r"(\bhttps?://)[^\s'\"/@]*@", r"\1…@", text)
    text = re.sub(r"(\w://[^\s'\"/@:]*):[^\s'\"/@]*@", r"\1:…@", text)
    text = re.sub(r"(\w://[^\s'\"?]*)\?[^\s'\"]*", r"\1?…", text)
    for secret, name in read_secrets().items():
        text = text.replace(secret, f"[{name}]")
    return text
