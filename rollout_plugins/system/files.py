"""Write files so that a reader, a crash or a power failure leaves either the old content or the new."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import uuid4

# Errors of fsync on a filesystem that does not support it, such as a bucket that is mounted as a folder.
_FSYNC_UNSUPPORTED: Final = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def sync_to_disk(descriptor: int) -> None:
    """Call `fsync`, and ignore a filesystem that does not support it."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _FSYNC_UNSUPPORTED:
            raise


def replace_file(path: Path, write: Callable[[Path], object], *, sync: bool = True) -> None:
    """Replace `path` atomically by what `write` puts into a temporary file; `sync` makes it survive a power cut."""
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        write(temporary)
        if sync:
            with temporary.open("rb+") as file:
                sync_to_disk(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
