"""Read remote runs, and cache what was read.

`~/.cache/rollout-plugins/s3/bucket/runs/…` represents `s3://bucket/runs/…`. Run files and journals are copied there. A
Parquet file is represented by an empty file of the same name and size. Beside it, the sparse file `.<name>.<version>`
holds the blocks that were read, followed by a byte for each block that tells whether it is present. So footers,
columns and row groups are fetched once, and only if a query needs them. A changed file has another version, and starts
empty.
"""

from __future__ import annotations

import io
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from threading import get_ident
from typing import Any, TypeAlias
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_plugins.errors import RunError, need
from rollout_plugins.reading.find_runs import DEPTH, find_all_runs
from rollout_plugins.reading.multi_node import cache_folder
from rollout_plugins.remote import folders
from rollout_plugins.remote.url_places import Place, place
from rollout_plugins.store.joined_parts import NOTE
from rollout_plugins.system.files import replace_file
from rollout_plugins.system.remote_runs import MARK, SCHEME

BLOCK = 256 * 2**10
#: How many requests run at once: most of the time goes into waiting for the first byte.
AT_ONCE = 16
#: The most folders that are listed to find the runs below a URL.
MOST_FOLDERS = 10_000
#: How much is cached of runs that were not opened for a day, before the oldest are removed.
MOST_BYTES = 20 * 2**30
_DAY = 86400
#: The folders of a run whose subfolders, one for each split or producer, contain its files.
_PARTS = ("data", "annotations", "steps")
_VERSIONS = ("ETag", "etag", "md5Hash", "oid", "blob_id", "content_settings", "mtime", "LastModified", "created")
Info: TypeAlias = Mapping[str, Any]


def find(url: str) -> list[Path]:
    """Return the local folders that represent the runs at or below a URL."""
    top = place(url)
    if top.is_local:
        return find_all_runs(top.path)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(_runs(pool, top))
        folders = [_folder(run) for run, _ in runs]
        list(pool.map(_bring_run_files, folders, runs))
    if not folders:
        raise RunError(f"no run found at {top.url} or below it; expected run.json")
    _forget_old(set(folders))
    return folders


def name(folder: Path) -> str:
    """Return the URL that a local folder represents."""
    return (folder / MARK).read_text(encoding="utf-8")


def refresh(folder: Path) -> None:
    """Update the local names of a run's files: add new and changed ones, and remove those that are gone."""
    run = place(name(folder))
    remote_files = _listed(run)
    files = {path: info for path, info in remote_files.items() if _is_run_file(path)}
    for part in _PARTS:
        if part in remote_files:
            files.update(_below(run, part))
    for path in _here(folder) - files.keys():
        (folder / path).unlink(missing_ok=True)
    new = [(folder / path, info) for path, info in files.items() if not _is_same(folder / path, info)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(partial(_take, run, folder), *zip(*new, strict=True)) if new else ())


def opened(file: Path) -> Blocks:
    """Return an open file that reads remote blocks on demand."""
    return Blocks(file)


def fetch(files: Sequence[Path], columns: Collection[str]) -> None:
    """Fetch some columns of Parquet files concurrently, before they are read one after the other."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(partial(_fetch_columns, frozenset(columns)), files))


def _fetch_columns(columns: Collection[str], file: Path) -> None:
    """Fetch columns of one file; an error is left to whoever reads the file."""
    with suppress(OSError, pa.ArrowException), Blocks(file) as blocks:
        about = pq.ParquetFile(blocks).metadata
        for group in map(about.row_group, range(about.num_row_groups)):
            chunks = [group.column(number) for number in range(group.num_columns)]
            chosen = [column for column in chunks if column.path_in_schema.partition(".")[0] in columns]
            starts = [column.dictionary_page_offset or column.data_page_offset for column in chosen]
            ends = [start + column.total_compressed_size for start, column in zip(starts, chosen, strict=True)]
            if chosen:
                blocks.fetch(min(starts), max(ends))


def bring(folder: Path, path: str) -> None:
    """Copy one complete file to the cache, if it exists and is not there yet."""
    if not _is_inside(path) or (folder / path).exists():
        return
    run = place(name(folder))
    try:
        content = _read(run, run.inside(path).path)
    except FileNotFoundError:
        return
    _write(folder / path, content)


def send(file: Path) -> None:
    """Copy a file that was written to the cache to the remote run."""
    folder = file.parents[2]
    run = place(name(folder))
    failed: list[Exception] = []
    sent_file = folders.File(file, file.relative_to(folder).as_posix(), file.stat().st_size)
    try:
        folders.folder(run).send([sent_file], lambda _: None, lambda _, error: failed.append(error))
    finally:
        file.unlink()  # from now on it represents the remote file
    if failed:
        raise RunError(f"{run.url}: {run.why(failed[0])}") from failed[0]


def arrow(urls: Sequence[str]) -> tuple[Any, list[str]]:
    """Return PyArrow's filesystem for URLs of one place, and their paths in it."""
    return place(urls[0]).arrow, [place(url).path for url in urls]


@cache
def filesystem() -> Any:
    """Return a filesystem of the cached files, for DuckDB."""
    from fsspec.spec import AbstractFileSystem

    class Files(AbstractFileSystem):  # type: ignore[misc]
        protocol = SCHEME

        @classmethod
        def _strip_protocol(cls, path: Any) -> str:
            return str(path).removeprefix(f"{SCHEME}://")

        def open(self, path: str, mode: str = "rb", **options: Any) -> Blocks:
            return Blocks(Path(self._strip_protocol(path)))

        def glob(self, path: str, **options: Any) -> list[str]:
            return [path]

        def info(self, path: str, **options: Any) -> dict[str, Any]:
            return {"name": path, "size": Path(self._strip_protocol(path)).stat().st_size, "type": "file"}

        def modified(self, path: str) -> Any:
            from datetime import datetime, timezone

            return datetime.fromtimestamp(Path(self._strip_protocol(path)).stat().st_mtime, timezone.utc)

    return Files()


class Blocks(io.RawIOBase):
    """A remote file of which only the blocks that are read are fetched, each once."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        about = file.stat()
        self._file, self.size = file, about.st_size
        # One position for each thread: DuckDB's threads share the file, and each seeks before it reads.
        self._at = defaultdict[int, int](int)
        kept = file.with_name(f".{file.name}.{int(about.st_mtime):08x}")
        self._fd = os.open(kept, os.O_RDWR | os.O_CREAT, 0o644)
        blocks = -(-self.size // BLOCK)
        if os.fstat(self._fd).st_size != self.size + blocks:
            os.ftruncate(self._fd, self.size + blocks)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at[get_ident()] = at = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self.size}[whence]
        )
        return at

    def tell(self) -> int:
        return self._at[get_ident()]

    def read(self, size: int | None = -1) -> bytes:
        at = self.tell()
        wanted = self.size - at if size is None or size < 0 else size
        wanted = max(min(wanted, self.size - at), 0)
        if wanted:
            self.fetch(at, at + wanted)
        data = os.pread(self._fd, wanted, at)
        self.seek(at + len(data))
        return data

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()

    def fetch(self, start: int, end: int) -> None:
        """Fetch the missing blocks, contiguous ones in one request."""
        first, last = start // BLOCK, -(-end // BLOCK)
        here = os.pread(self._fd, last - first, self.size + first)
        missing = [first + place for place, is_here in enumerate(here) if not is_here]
        for _, run in groupby(enumerate(missing), lambda pair: pair[1] - pair[0]):
            numbers = [number for _, number in run]
            at = numbers[0] * BLOCK
            data = self._from_there(at, min((numbers[-1] + 1) * BLOCK, self.size))
            with _kept():
                os.pwrite(self._fd, data, at)
                os.pwrite(self._fd, b"\1" * len(numbers), self.size + numbers[0])

    def _from_there(self, start: int, end: int) -> bytes:
        folder = self._file.parents[2]
        run = place(name(folder))
        path = run.inside(self._file.relative_to(folder).as_posix()).path
        try:
            data: bytes = _read(run, path, start, end)
        except FileNotFoundError:
            self._file.unlink(missing_ok=True)
            raise
        if len(data) != end - start:
            raise RunError(f"{run.url}/{self._file.name} changed while it was read; try again")
        return data


def _files(run: Place) -> Any:
    """Return the filesystem of a place. Arrow's own is preferred, because it runs without the interpreter lock."""
    from pyarrow import fs

    need("fsspec", "remote")
    if isinstance(run.arrow, fs.PyFileSystem):
        return run.fsspec
    from fsspec.implementations.arrow import ArrowFSWrapper

    return ArrowFSWrapper(run.lists)


def _read(run: Place, path: str, start: int | None = None, end: int | None = None) -> bytes:
    """Return the content of a remote file, or the bytes from `start` to `end`."""
    from pyarrow import fs

    def read() -> Any:
        if isinstance(run.arrow, fs.PyFileSystem):
            return run.fsspec.cat_file(path, start=start, end=end)
        with run.arrow.open_input_file(path) as file:
            return file.read_at((file.size() if end is None else end) - (start or 0), start or 0)

    content: bytes = _asked(run, read)
    return content


def _asked(run: Place, question: Callable[[], Any]) -> Any:
    """Return the result of `question`, or raise an error that says what to do.

    A missing file raises FileNotFoundError.
    """
    try:
        return question()
    except FileNotFoundError as error:
        if not run.is_missing(error):
            raise
        raise RunError(f"{run.url}: {run.why(error)}") from error
    except Exception as error:
        raise RunError(f"{run.url}: {run.why(error)}") from error


def _runs(pool: ThreadPoolExecutor, top: Place) -> Iterator[tuple[Place, Mapping[str, Info]]]:
    """Yield the runs at or below a place with the content of their folders, level by level."""
    level = [top]
    for depth in range(DEPTH + 1):
        below: list[Place] = []
        for folder, found in zip(level, pool.map(_listed, level), strict=True):
            if not found and not depth:
                raise RunError(f"there is nothing at {top.url}; give a run's URL, or that of a folder of runs")
            if "data" in found or any(map(_is_run_file, found)):
                yield folder, found
            else:
                below += [folder.inside(path) for path, info in found.items() if info["type"] == "directory"]
        if len(below) > MOST_FOLDERS:
            raise RunError(
                f"{top.url} has more than {MOST_FOLDERS:,} folders below it, and each could be a run; give the URL of "
                "a run, or of a folder of runs"
            )
        level = below


def _listed(folder: Place) -> dict[str, Info]:
    """Return the visible content of a folder by name."""

    def ask() -> Any:
        _files(folder).invalidate_cache()
        return _files(folder).ls(folder.path, detail=True)

    try:
        found = _asked(folder, ask)
    except FileNotFoundError:
        return {}
    infos = {PurePosixPath(info["name"].rstrip("/")).name: info for info in found}
    return {path: info for path, info in infos.items() if not path.startswith(".")}


def _below(run: Place, part: str) -> dict[str, Info]:
    """Return the files of a run's rollouts or annotations by their path in the run."""
    there = run.inside(part)
    found = _asked(there, lambda: _found(there))
    paths = {f"{part}/{'/'.join(PurePosixPath(path).parts[-2:])}": info for path, info in found.items()}
    return {path: info for path, info in paths.items() if _is_inside(path)}


def _found(there: Place) -> dict[str, Info]:
    """Return every file below a place.

    Arrow is preferred, because fsspec treats a folder that it may not list as empty.
    """
    from pyarrow import fs

    if isinstance(there.arrow, fs.PyFileSystem):
        return dict(_files(there).find(there.path, detail=True))
    infos = there.lists.get_file_info(fs.FileSelector(there.path, recursive=True, allow_not_found=True))
    return {info.path: {"size": info.size, "mtime": info.mtime} for info in infos if info.is_file}


def _is_run_file(path: str) -> bool:
    return path in {"run.json", NOTE} or (path.startswith("run-") and path.endswith(".json"))


def _is_inside(path: str) -> bool:
    """Return True if a path stays inside its run and is not hidden."""
    parts = PurePosixPath(path).parts
    return path[:1] != "/" and "\\" not in path and not any(part.startswith(".") for part in parts)


def _folder(run: Place) -> Path:
    """Return the local folder that represents a run, and create it if needed."""
    parts = PurePosixPath(run.path).parts
    if ".." in parts:
        raise RunError(f"{run.url} has .. in it; give the URL that is meant")
    folder = cache_folder().joinpath(run.protocol, *(part for part in parts if part != "/"))
    _write(folder / MARK, run.url.encode())
    return folder


def _bring_run_files(folder: Path, run_and_files: tuple[Place, Mapping[str, Info]]) -> None:
    run, files = run_and_files
    for path, info in files.items():
        if _is_run_file(path) and not _is_same(folder / path, info):
            _take(run, folder, folder / path, info)


def _here(folder: Path) -> set[str]:
    """Return the paths of the cached and represented files."""
    found = [
        *folder.glob("run*.json"),
        folder / NOTE,
        *(file for part in _PARTS for file in folder.glob(f"{part}/*/*")),
    ]
    return {path.relative_to(folder).as_posix() for path in found if not path.name.startswith(".")}


def _version(info: Info) -> int:
    """Return a number that changes with the file; it is stored as the modification time."""
    version_text = next((str(info[key]) for key in _VERSIONS if info.get(key) is not None), "")
    return crc32(f"{version_text} {info.get('size')}".encode())


def _is_same(file: Path, info: Info) -> bool:
    try:
        return int(file.stat().st_mtime) == _version(info)
    except FileNotFoundError:
        return False


def _take(run: Place, folder: Path, file: Path, info: Info) -> None:
    """Create the local file with the name, size and version of a remote one, and the content unless it is Parquet."""
    path = run.inside(file.relative_to(folder).as_posix()).path
    if file.suffix == ".parquet":
        _write(file, b"", size=info["size"], version=_version(info))
        return
    try:
        content = _read(run, path)
    except FileNotFoundError:  # this journal was just turned into Parquet
        return
    _write(file, content, version=_version(info))


def _write(file: Path, content: bytes, *, size: int | None = None, version: int | None = None) -> None:
    def write(path: Path) -> None:
        path.write_bytes(content)
        if size is not None:
            os.truncate(path, size)
        if version is not None:
            os.utime(path, (version, version))

    with _kept():
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, write, sync=False)


def _kept() -> AbstractContextManager[None]:
    return folders.written_here(cache_folder(), "set ROLLOUTS_CACHE to another folder")


def _forget_old(needed: Iterable[Path]) -> None:
    """If the cache is large, remove the files that were not opened for the longest time."""
    marks = sorted(cache_folder().rglob(MARK), key=lambda mark: mark.stat().st_mtime, reverse=True)
    left = MOST_BYTES
    for mark in marks:
        left -= sum(file.stat().st_blocks * 512 for file in mark.parent.rglob("*"))
        if left < 0 and mark.parent not in needed and time.time() - mark.stat().st_mtime > _DAY:
            shutil.rmtree(mark.parent, ignore_errors=True)
