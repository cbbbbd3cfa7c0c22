"""Send a run to a URL, or fetch one. Files that the target already has are skipped."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.errors import RunError
from rollout_plugins.reading.query_session import readable
from rollout_plugins.reading.relocated_parts import relocated_urls
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.remote.card import publish
from rollout_plugins.remote.folder_sync import Copying, is_facts, is_fixed, run_folders, with_attempts
from rollout_plugins.remote.folders import File, Folder, files_of, folder, total, written_here
from rollout_plugins.remote.sessions import write_sessions
from rollout_plugins.remote.url_places import Place, place
from rollout_plugins.store.joined_parts import NOTE, read_joined_parts, record_joined_parts, remove_contained_parts
from rollout_plugins.store.run_facts import earlier_attempts, run_files
from rollout_plugins.store.write import SEAL_BYTES, read_journal, write_parquet
from rollout_plugins.system.files import replace_file
from rollout_plugins.system.labels import count
from rollout_plugins.system.node_folders import nodes_of
from rollout_plugins.system.remote_runs import MARK

Progress = Callable[[str, int, int], object]
#: The approximate number of files that a folder on the Hub may have.
MOST_SESSIONS = 10_000


def push(
    run: StoredRun, url: str, chosen: Mapping[str, Any], *, public: bool, sessions: bool, progress: Progress
) -> str:
    """Send a run, or its rollouts that match `chosen`, and return where it is. On the Hub, it gets a card."""
    check_here(run)
    to = place(url)
    target = folder(to, private=not public)
    with _explained(to), tempfile.TemporaryDirectory(prefix="rollouts-push-") as temporary:
        staged = _staged(
            run, Path(temporary), chosen, sessions=sessions
        )  # stage first, because there may be nothing to send
        target.prepare()
        _check_public(target, public=public)
        is_whole = not chosen and not sessions
        first = run.dir if is_whole else staged
        copying = Copying.beside(first, target, *_last(run), journals=not is_whole or target.repo_root is None)
        _send(copying, to, progress)
        # A dataset contains Parquet files only.
        if is_whole and target.repo_root is not None:
            _send(Copying(staged, copying.target, journals=False), to, progress)
        publish(copying.target, run.dir, chosen)
    return copying.target.place.url


def send_dataset(source: Path, url: str, *, public: bool, force: bool, progress: Progress) -> str:
    """Send the files of a folder, a dataset with its card, and return where they are."""
    to = place(url)
    target = folder(to, private=not public)
    with _explained(to):
        target.prepare()
        _check_public(target, public=public)
        names = {path.name for path in source.iterdir()}
        if (taken := sorted(names & target.sizes().keys())) and not force:
            raise RunError(
                f"{url} has {' and '.join(taken)} already; replace them with --force, or choose another place"
            )
        files = [File(path, path.name, path.stat().st_size) for path in sorted(source.iterdir())]
        failed: dict[str, str] = {}
        sizes, done = sum(file.size for file in files), 0

        def note_sent(file: File) -> None:
            nonlocal done
            done += file.size
            progress(f"sending {total(files)}", done, sizes)

        target.send(files, note_sent, lambda file, error: failed.setdefault(file.name, str(error)))
        if failed:
            raise RunError(f"{url}: {', '.join(failed)} could not be sent: {next(iter(failed.values()))}")
    return target.place.url


def _check_public(target: Folder, *, public: bool) -> None:
    """Raise an error if an existing dataset has another visibility than requested."""
    url, is_public = target.place.url, target.is_public
    if is_public is None and public:
        raise RunError(f"--public is for the Hub; who can read {url} is decided there")
    if is_public and not public:
        raise RunError(f"{url} is public, so everybody could read these rollouts; if they may, say --public")
    if is_public is False and public:
        raise RunError(f"{url} exists and is private; make it public in its settings there, or leave out --public")


def check_here(run: StoredRun) -> None:
    """Raise an error if the run is remote, so that only parts of it are cached here."""
    if any((node / MARK).exists() for node in nodes_of(run.dir)):
        raise RunError(f"{run.place} is not on this machine: fetch it with `rollouts pull`, and give that folder")


@contextmanager
def _explained(to: Place) -> Iterator[None]:
    """Turn errors of a service into errors that say what to do."""
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
    if any(is_fixed(file.name) and not file.path.exists() for file in files):
        # Another process joined parts meanwhile: send the joined one.
        _send(copying, to, progress)


def _staged(run: StoredRun, temporary: Path, chosen: Mapping[str, Any], *, sessions: bool) -> Path:
    """Create the files to send: Parquet files for the journals of a complete run, otherwise all files."""
    digest = hashlib.sha256(json.dumps(chosen, sort_keys=True, default=str).encode()).hexdigest()[:6]
    names = [run.dir.name, "sessions" if sessions else "", f"chosen-{digest}" if chosen else ""]
    staging = temporary / "-".join(filter(None, names))
    staging.mkdir()
    if sessions:
        _write_sessions(run, staging, chosen)
    elif chosen:
        _write_chosen(run, staging, chosen)
    else:
        _write_journals(run, staging)
    return staging


def _write_sessions(run: StoredRun, staging: Path, chosen: Mapping[str, Any]) -> None:
    wanted = run.count(**chosen)
    if not 0 < wanted <= MOST_SESSIONS:
        raise RunError(
            f"{count(wanted, 'rollout')} would be a file each, and the Hub takes 1 to {MOST_SESSIONS:,}; "
            "choose some with --where, --step or --limit"
        )
    write_sessions(run.info, run.rollouts(**chosen), staging)


def _write_chosen(run: StoredRun, staging: Path, chosen: Mapping[str, Any]) -> None:
    """Write the selected rollouts and their images in the form of a run."""
    if not run.count(**chosen):
        raise RunError(f"no rollout of {run.place} matches, so there is nothing to push")
    for path in run_files(run.dir):
        facts = json.loads(path.read_bytes())
        for attempt in facts.get("attempts", ()):
            attempt.pop("rollouts", None)  # otherwise the unselected ones would count as missing
        (staging / path.name).write_text(json.dumps({**facts, "chosen": dict(chosen)}, default=str), encoding="utf-8")
    for split in run.values("split"):
        target = staging / "data" / str(split)
        target.mkdir(parents=True)
        tables = (table.filter(pc.equal(table["split"], split)) for table in run.batches(None, **chosen))
        for number, some in enumerate(_in_parts(table for table in tables if table.num_rows)):
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
    (staging / "media").mkdir(exist_ok=True)
    rows = (images or () for table in tables for images in table["images"].to_pylist())
    for path in {image["path"] for images in rows for image in images if image["path"]}:
        for node in nodes_of(run.dir):
            with suppress(OSError):
                shutil.copyfile(node / path, staging / path)


def _write_journals(run: StoredRun, staging: Path) -> None:
    for part in readable(run.dir, run.health.damaged)[0]:
        if part.is_journal and (table := read_journal(part.path)).num_rows:
            target = (staging / part.name).with_suffix(".parquet")
            target.parent.mkdir(parents=True, exist_ok=True)
            write_parquet(target, [table])


def pull(url: str, parent: Path, *, progress: Progress) -> tuple[Path, int]:
    """Fetch a run into a folder of its name; return the folder and the number of fetched files."""
    source = place(url)
    there = folder(source)
    with _explained(source):
        sizes = there.sizes()
        name = _one_run(source, run_folders(sizes))
        if name:
            there = there.inside(name)
            sizes = {path[len(name) + 1 :]: size for path, size in sizes.items() if path.startswith(f"{name}/")}
        target = _folder_for(there.place, parent)
        is_origin = any((target / name).exists() for name in (".mirror", ".moved.json"))
        here = {file.name: file.size for file in files_of(target)}
        if NOTE in sizes:
            _fetch_joined(there, target)
        remaining = remove_contained_parts(target, {*sizes, *here}) - {NOTE}
        missing = {name: sizes[name] for name in remaining & sizes.keys()}
        missing = {name: size for name, size in missing.items() if not _has(name, size, here, is_origin=is_origin)}
        _fetch(there, target, missing, progress)
        for name in filter(is_facts, here.keys() & sizes.keys() - missing.keys()):
            _fetch_lost_attempts(there, target / name)
    return target, len(missing)


def _folder_for(run: Place, parent: Path) -> Path:
    """Return the folder from which parts of the run were removed, or else a folder with the run's name."""
    folders = (note.parent for note in sorted(parent.glob("*/.moved.json")))
    return next(
        (folder for folder in folders if run.url in relocated_urls(folder).values()),
        parent / run.path.rpartition("/")[2],
    )


def _fetch_joined(there: Folder, target: Path) -> None:
    """Add the target's list of joined parts to the local one, because either may have joined parts meanwhile."""
    with tempfile.TemporaryDirectory(prefix="rollouts-pull-") as temporary:
        there.fetch(NOTE, Path(temporary) / NOTE)
        with written_here(target):
            target.mkdir(parents=True, exist_ok=True)
            record_joined_parts(target, read_joined_parts(Path(temporary)))


def _fetch_lost_attempts(there: Folder, file: Path) -> None:
    """Add attempts that only the remote run file has, because a machine lost its disk."""
    with tempfile.TemporaryDirectory(prefix="rollouts-pull-") as temporary:
        there.fetch(file.name, Path(temporary) / file.name)
        content = with_attempts(file, earlier_attempts(Path(temporary) / file.name))
    if content:
        replace_file(file, lambda path: path.write_text(content, encoding="utf-8"))


def _one_run(source: Place, run_names: list[str]) -> str:
    """Return the folder of the only run in a place; "" is the place itself."""
    if not run_names:
        raise RunError(f"{source.url} is not a run: no run.json and no data; give the URL of a run's folder")
    if len(run_names) > 1 and "" not in run_names:
        named = ", ".join(run_names[:5]) + (" and more" if len(run_names) > 5 else "")
        raise RunError(
            f"{source.url} has {len(run_names):,} runs, {named}; give the URL of one: {source.url}/{run_names[0]}"
        )
    return "" if "" in run_names else run_names[0]


def _has(name: str, size: int, here: Mapping[str, int], *, is_origin: bool) -> bool:
    """Return True if a file need not be fetched. Where the run was recorded, local files are the newest."""
    if is_origin or is_fixed(name):
        return name in here and (is_origin or here[name] == size)
    return False


def _fetch(there: Folder, target: Path, sizes: Mapping[str, int], progress: Progress) -> None:
    whole, done = sum(sizes.values()), 0
    for name in sorted(sizes, key=lambda name: ("/" not in name, name)):
        if ".." in Path(name).parts:
            raise RunError(f"{there.place.url} has a file named {name!r}, which no run has")
        there.fetch(name, target / name)
        done += sizes[name]
        progress(f"fetching {count(len(sizes), 'file')}", done, whole)
