"""Disks and what passes for one: a bucket that is mounted as a folder cannot do all that a disk can."""

from __future__ import annotations

import errno
import os
from typing import Final

_NOT_THERE: Final = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def to_disk(descriptor: int) -> None:
    """Have the disk keep what was written. Where a filesystem has no such call, its own way of keeping must do."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
