"""A run that is sent to a URL, or fetched from one: what is there already is not sent again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_plugins.content.elsewhere import MARK
from rollout_plugins.errors import RunError
from rollout_plugins.remote.card import card
from rollout_plugins.remote.copying import Copying, is_fixed, run_folder
from rollout_plugins.remote.folders import File, Folder, files_of, folder, total
from rollout_plugins.remote.places import Place, place
from rollout_plugins.store.parts import find_parts
from rollout_plugins.store.read import StoredRun
from rollout_plugins.store.write import SEAL_BYTES, read_journal, write_parquet

Progress = Callable[[str, int, int], object]


def push(run: StoredRun, url: str, chosen: Mapping[str, Any], *, public: bool, progress: Progress) -> str:
    """Send a run; returns where it is. To the Hub as a dataset with a card, elsewhere as it is."""
    check_here(run)
    to = place(url)
    target = folder(to, private=not public)
    is_dataset = to.protocol == "hf" and to.path.startswith("datasets/") and to.path.count("/") == 2
    if chosen and not is_dataset:
        raise RunError(
            f"{to.url} gets the whole run; filters are for datasets on the Hub, hf://datasets/OWNER/NAME: "
            "write a file with `rollouts export` instead"
        )
    with _explained(to):
        target.prepare()
        if is_dataset:
            _push_dataset(run, target, chosen, progress)
            return to.url
        copying = Copying.beside(run.dir, target, *_last(run))
        _send(copying, to, progress)
    return copying.target.place.url


def check_here(run: StoredRun) -> None:
    """Raise when only what was looked at of a run is on this machine."""
    if (run.dir / MARK).exists():
        raise RunError(f"{run.name} is not on this machine: fetch it with `rollouts pull`, and give that folder")


def _push_dataset(run: StoredRun, target: Folder, chosen: Mapping[str, Any], progress: Progress) -> None:
    to = target.place
    with _staged(run, to.path.removeprefix("datasets/"), chosen) as folders:
        found = [Copying(source, target, journals=False) for source in folders]
        if any(copying.differs() for copying in found):
            raise RunError(f"{to.url} has another run, or other rollouts of this one; give another name")
        for copying in found:
            _send(copying, to, progress)


@contextmanager
def _explained(to: Place) -> Iterator[None]:
    """What a service says, as an error that says what to do."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        raise RunError(f"{to.url}: {to.why(error)}; say it again to go on") from error


def _last(run: StoredRun) -> tuple[int, int]:
    return max((attempt["attempt"] for attempt in run.attempts), default=1), run.info.rank


def _send(copying: Copying, to: Place, progress: Progress) -> None:
    files = copying.pending(everything=True)
    whole, done = sum(file.size for file in files), 0

    def told(file: File) -> None:
        nonlocal done
        done += file.size
        progress(f"sending {total(files)}", done, whole)

    if not copying.send(files, told):
        why = next(iter(copying.failed.values()), "a file changed meanwhile")
        left = total(file for file in files if file.name in copying.failed)
        raise RunError(f"{to.url}: {left} could not be sent: {why}; say it again to go on")


@contextmanager
def _staged(run: StoredRun, repo: str, chosen: Mapping[str, Any]) -> Iterator[list[Path]]:
    """The folders whose files make up the dataset: the run's own, where it is taken whole, and what is made for it."""
    with tempfile.TemporaryDirectory(prefix="rollouts-push-") as made:
        staging = Path(made)
        if chosen:
            _write_chosen(run, staging, chosen)
        else:
            _write_journals(run, staging)
        parts = [part.path for source in (staging, *([] if chosen else [run.dir])) for part in find_parts(source)]
        parts = [path for path in parts if path.suffix == ".parquet"]
        if not parts:
            raise RunError(f"no rollout of {run.dir} matches, so there is nothing to push")
        rows: dict[str, int] = {}
        for path in sorted(parts, key=lambda path: path.parent.name != "train"):
            rows[path.parent.name] = rows.get(path.parent.name, 0) + pq.read_metadata(path).num_rows
        text = card(run, rows, pq.read_schema(parts[0]), repo, chosen)
        (staging / "README.md").write_text(text, encoding="utf-8")
        yield [staging] if chosen else [run.dir, staging]


def _write_chosen(run: StoredRun, staging: Path, chosen: Mapping[str, Any]) -> None:
    """The rollouts that were asked for, in files like those of a run, with the pictures in them."""
    for path in run.dir.glob("run*.json"):
        (staging / path.name).write_bytes(path.read_bytes())
    for split in run.values("split"):
        if chosen.get("split", split) != split:
            continue
        target = staging / "data" / str(split)
        target.mkdir(parents=True)
        tables = run.tables(None, **{**chosen, "split": split})
        for number, some in enumerate(_in_parts(tables)):
            write_parquet(target / f"001-00000-{number:06d}.parquet", some)
            _take_media(run, staging, some)


def _in_parts(tables: Iterator[pa.Table]) -> Iterator[list[pa.Table]]:
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(each.nbytes for each in waiting) > SEAL_BYTES:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _take_media(run: StoredRun, staging: Path, tables: list[pa.Table]) -> None:
    for table in tables:
        for images in table["images"].to_pylist():
            for path in (image["path"] for image in images or () if image["path"]):
                with suppress(OSError):
                    (staging / path).parent.mkdir(parents=True, exist_ok=True)
                    (staging / path).write_bytes((run.dir / path).read_bytes())


def _write_journals(run: StoredRun, staging: Path) -> None:
    """A dataset has Parquet files alone."""
    for part in find_parts(run.dir):
        if part.is_journal and (table := read_journal(part.path)).num_rows:
            target = staging / part.path.relative_to(run.dir).with_suffix(".parquet")
            target.parent.mkdir(parents=True, exist_ok=True)
            write_parquet(target, [table])


def pull(url: str, parent: Path, *, progress: Progress) -> tuple[Path, int]:
    """Fetch a run into a folder of its name; returns that, and how many files came."""
    source = place(url)
    target = parent / source.path.rpartition("/")[2]
    is_origin = any((target / name).exists() for name in (".mirror", ".moved.json"))
    there = folder(source)
    with _explained(source):
        sizes = there.sizes()
        if not run_folder(sizes):
            raise RunError(f"{source.url} is not a run: no run.json and no data; give the URL of a run's folder")
        here = {file.name: file.size for file in files_of(target)}
        wanted = {name: size for name, size in sizes.items() if not _has(name, size, here, is_origin=is_origin)}
        _fetch(there, target, wanted, progress)
    return target, len(wanted)


def _has(name: str, size: int, here: Mapping[str, int], *, is_origin: bool) -> bool:
    """Whether a file need not be fetched. Where the run was recorded, what is there is as new as it gets."""
    if is_origin or is_fixed(name):
        return name in here and (is_origin or here[name] == size)
    return False


def _fetch(there: Folder, target: Path, wanted: Mapping[str, int], progress: Progress) -> None:
    whole, done = sum(wanted.values()), 0
    for name in sorted(wanted, key=lambda name: ("/" not in name, name)):
        if ".." in Path(name).parts:
            raise RunError(f"{there.place.url} has a file named {name!r}, which no run has")
        there.fetch(name, target / name)
        done += wanted[name]
        progress(f"fetching {len(wanted):,} files", done, whole)
