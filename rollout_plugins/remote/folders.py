"""List remote folders, and send and fetch files; a file arrives complete or not at all."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from rollout_plugins.engine.threads import own_thread
from rollout_plugins.errors import RunError
from rollout_plugins.remote.url_places import Place
from rollout_plugins.system.files import replace_file
from rollout_plugins.system.labels import count
from rollout_plugins.system.node_folders import nodes_of

#: How many files are transferred at once.
AT_ONCE = 4
_BLOCK = 8 * 2**20
#: After this many failures in a row, the other files are not tried.
FAILURES = 3
#: Records of what was exported from this folder, which are valid for this folder only.
_ONLY_HERE = ("exports",)


class File(NamedTuple):
    """A local file, and its name in the remote folder."""

    path: Path
    name: str
    size: int


def files_of(folder: Path) -> Iterator[File]:
    """Yield all files of a run's folder that readers need."""
    return chain.from_iterable(map(_files_of, nodes_of(folder)))


def _files_of(folder: Path) -> Iterator[File]:
    for root, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if name[0] != "." and not (root == str(folder) and name in _ONLY_HERE)]
        for name in names:
            path = Path(root, name)
            with suppress(OSError):  # this journal just became a part
                if name[0] != ".":
                    yield File(path, path.relative_to(folder).as_posix(), path.stat().st_size)


class Folder:
    """A folder in a place that stores files one by one."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def inside(self, name: str) -> Folder:
        return type(self)(self.place.inside(name))

    @property
    def repo_root(self) -> HubFolder | None:
        """The root of the dataset that contains the folder, for its card, or None."""
        return None

    @property
    def is_public(self) -> bool | None:
        """Return True if everybody can read the folder, or None if that is unknown."""
        return None

    def prepare(self) -> None:
        """Create whatever the first file needs."""

    def sizes(self) -> dict[str, int]:
        """Return the size of each file in the folder, at any depth."""
        from pyarrow import fs

        if isinstance(self.place.arrow, fs.PyFileSystem):
            self.place.fsspec.invalidate_cache()
        root = self.place.path.strip("/")
        chosen = fs.FileSelector(self.place.path, recursive=True, allow_not_found=True)
        infos = (info for info in self.place.lists.get_file_info(chosen) if info.type == fs.FileType.File)
        found = ((info.path.strip("/").removeprefix(f"{root}/"), info.size) for info in infos)
        return {name: size for name, size in found if not name.rpartition("/")[2].startswith(".")}

    def size(self, name: str) -> int | None:
        """Return the size of one file, or None if it does not exist."""
        info = self.place.arrow.get_file_info(self.place.inside(name).path)
        return info.size if info.is_file else None

    def send(
        self, files: Sequence[File], sent: Callable[[File], object], failed: Callable[[File, Exception], object]
    ) -> None:
        """Send several files at a time, and stop after a few failures in a row."""
        waiting, in_a_row = deque(files), [0]

        def work() -> None:
            while waiting and in_a_row[0] < FAILURES:
                try:
                    file = waiting.popleft()
                except IndexError:
                    return
                try:
                    self._send(file)
                except Exception as error:
                    in_a_row[0] += (
                        file.path.exists()
                        # A file that was joined or sealed meanwhile is not a failure of the place.
                    )
                    failed(file, error)
                else:
                    in_a_row[0] = 0
                    sent(file)

        helpers = [own_thread("copying", work) for _ in range(min(AT_ONCE, len(files) // 4))]
        with suppress(RuntimeError):  # at interpreter exit, no more threads can start
            for helper in helpers:
                helper.start()
        work()
        for helper in helpers:
            if helper.ident is not None:
                helper.join()

    def _send(self, file: File) -> None:
        """Send a file under a temporary name, or none, until it is complete."""
        target, before = self.place.inside(file.name), file.path.stat()
        if self.place.appears_whole:
            self._copy(file.path, target.path)
        else:
            parent = target.path.rpartition("/")[0]
            hidden = f"{parent}/.{uuid4().hex}.tmp"
            self.place.arrow.create_dir(parent, recursive=True)
            try:
                self._copy(file.path, hidden)
                self.place.arrow.move(hidden, target.path)
            except BaseException:
                with suppress(Exception):
                    self.place.arrow.delete_file(hidden)
                raise
        try:
            arrived, now = self.size(file.name), file.path.stat()
        except FileNotFoundError:
            if file.name.endswith(".arrows"):  # it became a part, which is sent later
                with suppress(Exception):
                    self.remove(file.name)
            raise
        has_changed = (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns)  # and will be sent again
        if arrived != before.st_size and not has_changed:
            with suppress(Exception):
                self.remove(file.name)
            raise OSError(f"{arrived or 0:,} of the {before.st_size:,} bytes of {file.name} arrived")

    def _copy(self, path: Path, target: str) -> None:
        from pyarrow import fs

        if isinstance(self.place.arrow, fs.PyFileSystem):
            self.place.fsspec.put_file(str(path), target)
            return
        with path.open("rb") as source, self.place.arrow.open_output_stream(target) as stream:
            while block := source.read(_BLOCK):
                stream.write(block)

    def remove(self, name: str) -> None:
        self.place.arrow.delete_file(self.place.inside(name).path)

    def fetch(self, name: str, path: Path) -> None:
        """Fetch one file."""
        source = self.place.inside(name)

        def write(temporary: Path) -> None:
            with source.arrow.open_input_stream(source.path) as stream, temporary.open("wb") as file:
                while block := stream.read(_BLOCK):
                    with written_here(path.parent):
                        file.write(block)
                        file.flush()

        with written_here(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, write)


class HubFolder(Folder):
    """A folder in a dataset or bucket of the Hugging Face Hub, which receives files in commits."""

    #: The number of files in a commit, because the Hub limits commits per hour.
    IN_A_COMMIT = 200

    def __init__(self, place: Place, *, private: bool = True) -> None:
        super().__init__(place)
        self._private = private
        kind, *names = place.path.split("/")
        if kind not in {"datasets", "buckets"} or len(names) < 2:
            raise RunError(
                f"{place.url} is not a place for a run; give hf://datasets/OWNER/NAME or hf://buckets/OWNER/NAME"
            )
        self.repo, self._inside = "/".join(names[:2]), "/".join(names[2:])
        self._is_bucket = kind == "buckets"

    def inside(self, name: str) -> HubFolder:
        return HubFolder(self.place.inside(name), private=self._private)

    @cached_property
    def _api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi()

    @property
    def is_public(self) -> bool:
        if self._is_bucket:
            return not self._api.bucket_info(self.repo).private
        return not self._api.dataset_info(self.repo, expand=["private"]).private

    def prepare(self) -> None:
        if self._is_bucket:
            if not hasattr(self._api, "create_bucket"):
                raise RunError(
                    f"{self.place.url}: this huggingface_hub knows no buckets: pip install --upgrade huggingface_hub"
                )
            self._api.create_bucket(self.repo, private=self._private, exist_ok=True)
        else:
            self._api.create_repo(self.repo, repo_type="dataset", private=self._private, exist_ok=True)

    def sizes(self) -> dict[str, int]:
        self.place.fsspec.invalidate_cache()
        root = self.place.path
        try:
            found = self.place.fsspec.find(root, detail=True)
        except FileNotFoundError as error:
            if self.place.is_missing(error):
                raise
            return {}
        return {path.removeprefix(f"{root}/"): about["size"] for path, about in found.items()}

    def size(self, name: str) -> int | None:
        paths = [self._path(name)]
        if self._is_bucket:
            found = self._api.get_bucket_paths_info(self.repo, paths)
        else:
            found = self._api.get_paths_info(self.repo, paths, repo_type="dataset")
        return next((about.size for about in found), None)

    def _path(self, name: str) -> str:
        return f"{self._inside}/{name}".lstrip("/")

    @property
    def repo_root(self) -> HubFolder | None:
        return None if self._is_bucket else HubFolder(Place("hf", f"datasets/{self.repo}"), private=self._private)

    def send(
        self, files: Sequence[File], sent: Callable[[File], object], failed: Callable[[File, Exception], object]
    ) -> None:
        for start in range(0, len(files), self.IN_A_COMMIT):
            some = files[start : start + self.IN_A_COMMIT]
            try:
                self._commit(some)
            except Exception as error:
                for file in files[start:]:
                    failed(file, error)
                return
            for file in some:
                sent(file)

    def _commit(self, files: Sequence[File]) -> None:
        named = [(str(file.path), self._path(file.name)) for file in files]
        if self._is_bucket:
            with BARS.hidden():
                self._api.batch_bucket_files(self.repo, add=named)
        else:
            self._add(named)

    def _add(self, named: Sequence[tuple[str | bytes, str]]) -> None:
        from huggingface_hub import CommitOperationAdd

        added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=content) for content, name in named]
        message = f"Add {named[0][1]}" if len(named) == 1 else f"Add {len(named)} files"
        with BARS.hidden():
            self._api.create_commit(self.repo, added, repo_type="dataset", commit_message=message)

    def write(self, name: str, text: str) -> None:
        """Write a small file of the dataset."""
        self._add([(text.encode(), self._path(name))])

    def remove(self, name: str) -> None:
        if self._is_bucket:
            self._api.batch_bucket_files(self.repo, delete=[self._path(name)])
        else:
            self._api.delete_file(self._path(name), self.repo, repo_type="dataset")


@contextmanager
def written_here(folder: Path, instead: str = "give another folder") -> Iterator[None]:
    """Turn errors of the local disk into a message; errors of a remote place pass through."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError(f"{folder} cannot be written to: {why}; make room there, or {instead}") from error


class Bars:
    """The progress bars of the Hub's client. Several runs may be sent at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._senders = 0
        self._before: dict[str, bool] = {}

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the bars, because the terminal belongs to training."""
        from huggingface_hub.utils.tqdm import progress_bar_states as shown

        with self._lock:
            self._senders += 1
            if self._senders == 1:
                self._before = dict(shown)
                shown.clear()
                shown["_global"] = False
        try:
            yield
        finally:
            with self._lock:
                self._senders -= 1
                if not self._senders:
                    shown.clear()
                    shown.update(self._before)


BARS = Bars()


def folder(place: Place, *, private: bool = True) -> Folder:
    """Return the folder at a place."""
    return HubFolder(place, private=private) if place.protocol == "hf" else Folder(place)


def total(files: Iterable[File]) -> str:
    """Return number and total size of files as text."""
    all_files = list(files)
    return f"{count(len(all_files), 'file')} ({size_of(sum(file.size for file in all_files))})"


def size_of(size: float) -> str:
    """Return a size in bytes as text."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.{0 if unit == 'bytes' else 1}f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
