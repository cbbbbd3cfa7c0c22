"""Import rollouts that other libraries left on disk as a run.

    report = import_rollouts("verl", "ckpts/rollout_data", "outputs")
    open_run(report.dir)

Each format is a module with `NAME`, `LACKS` (what the format does not contain, in plain words) and `read(path)`, which
yields a rollout, or a `Lost` with the reason, for each row.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from rollout_hookspecs import Rollout, Run

from rollout_plugins.content.foreign_values import Lost, Unplaced, assign_groups, collect_batch
from rollout_plugins.errors import RunError
from rollout_plugins.store.write import RunWriter
from rollout_plugins.system.labels import BatchNames, format_counts

FORMATS = {
    "trl": "trl",
    "verl": "verl",
    "verifiers": "verifiers",
    "tinker": "tinker",
    "areal": "areal",
    "openai-jsonl": "openai",
}
"""The names of the formats, each with its module."""
_PROGRESS_INTERVAL = 500
# Split, step, the generation if the format has one, and whether the rollouts have an id and index already.
_Generation = tuple[str, int, Any, bool]


@dataclass(slots=True)
class Report:
    """The result of an import."""

    dir: Path
    """The new run's folder."""
    rollouts: int = 0
    """How many rollouts the run contains."""
    skipped: Counter[str] = field(default_factory=Counter)
    """How many rows could not be read, by reason."""
    lacks: tuple[str, ...] = ()
    """What the format does not contain."""
    marked: int = 0
    """How many values no field could hold, so that a mark replaces them."""


def import_rollouts(
    format_name: str,
    path: str | Path,
    out: str | Path,
    *,
    split: str | None = None,
    progress: Callable[[str, int, int], object] = lambda *_: None,
) -> Report:
    """Read rollouts in another library's format and write them as a new run inside `out`.

    progress: called with the current activity, how many rollouts are done, and out of how many (0: unknown).
    """
    if format_name not in FORMATS:
        raise RunError(f"{format_name!r} is not a format; the formats are {', '.join(FORMATS)}")
    source = Path(path)
    if not source.exists():
        raise RunError(f"{source} does not exist: give the file or the folder that {format_name} wrote")
    reader = import_module(f"rollout_plugins.shapes.{FORMATS[format_name]}")
    report = Report(_folder(Path(out), format_name, source), lacks=reader.LACKS)
    rollouts = _with_progress(_read(reader, source, split, Counter()), "reading", 0, progress)
    names, sizes = _overview(rollouts)
    hidden = report.dir.with_name(f".{report.dir.name}.{secrets.token_hex(4)}")
    run = Run(
        id=report.dir.name,
        dir=str(hidden),
        trainer=reader.NAME,
        host=f"import:{format_name}",
        reward_names=names,
        settings={"imported_from": str(source.resolve()), "lacks": list(reader.LACKS)},
    )
    rollouts = _with_progress(_read(reader, source, split, report.skipped), "writing", sizes.total(), progress)
    try:
        _write(_generations(rollouts, sizes), run, report, _first_free(sizes))
        hidden.rename(report.dir)  # only a complete import gets the name of a run
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return report


def _folder(out: Path, format_name: str, source: Path) -> Path:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", source.resolve().stem).strip("-.") or "rollouts"
    folder = out / "rollouts" / f"{format_name}-{stem[:60]}"
    if folder.exists():
        raise RunError(f"{folder} exists already: remove it, or choose another folder with --out")
    return folder


def _read(reader: Any, source: Path, split: str | None, skipped: Counter[str]) -> Iterator[Unplaced]:
    """Yield every rollout in the source, and count the other rows by reason."""
    ids: set[str] = set()
    for item in reader.read(source):
        if isinstance(item, Lost):
            skipped[item.reason] += 1
            continue
        if item.has_place:
            if item.rollout.id in ids:
                skipped["rollout that an earlier line has"] += 1
                continue
            ids.add(item.rollout.id)
        yield item if split is None else replace(item, rollout=replace(item.rollout, split=split))


def _with_progress(
    rollouts: Iterator[Unplaced], activity: str, total: int, progress: Callable[[str, int, int], object]
) -> Iterator[Unplaced]:
    """Yield the rollouts and report progress at intervals."""
    for number, rollout in enumerate(rollouts, 1):
        yield rollout
        if number % _PROGRESS_INTERVAL == 0:
            progress(activity, number, total)


def _overview(rollouts: Iterator[Unplaced]) -> tuple[tuple[str, ...], Counter[Any]]:
    """Return the names of all rewards, and how many rollouts each generation has."""
    names: dict[str, None] = {}
    sizes: Counter[Any] = Counter()
    for unplaced in rollouts:
        names.update(dict.fromkeys(unplaced.rollout.rewards))
        sizes[_generation(unplaced)] += 1
    return tuple(names), sizes


def _generation(unplaced: Unplaced) -> _Generation:
    """Return the key of a rollout's generation. By default that is its split and step, in whatever file it is."""
    return unplaced.rollout.split, unplaced.rollout.step, unplaced.generation, unplaced.has_place


def _generations(rollouts: Iterator[Unplaced], sizes: Counter[Any]) -> Iterator[list[Unplaced]]:
    """Yield the rollouts of each generation as soon as all of them were read."""
    incomplete: dict[_Generation, list[Unplaced]] = {}
    for unplaced in rollouts:
        key = _generation(unplaced)
        incomplete.setdefault(key, []).append(unplaced)
        if len(incomplete[key]) == sizes[key]:
            yield incomplete.pop(key)
    yield from incomplete.values()  # if the files became shorter meanwhile


def _first_free(sizes: Counter[_Generation]) -> Counter[str]:
    """Return, for each split, the first generation number that no placed generation has."""
    numbers: Counter[str] = Counter()
    for split, _, generation, has_place in sizes:
        if has_place:
            numbers[split] = max(numbers[split], generation[1] + 1)
    return numbers


def _write(generations: Iterator[list[Unplaced]], run: Run, report: Report, numbers: Counter[str]) -> None:
    """Write the generations; `numbers` has the number of each split's next generation."""
    writers = _Writers(run)
    names = BatchNames()
    for batch in generations:
        if batch[0].has_place:
            writers.write_in_place([unplaced.rollout for unplaced in batch])
            continue
        split, step = batch[0].rollout.split, batch[0].rollout.step
        name = names.name(run, split, step)
        rows = assign_groups(collect_batch(batch))
        ids = [f"{name}.0.{index}" for index in rows["index"]]
        rows.set_columns(id=ids, run_id=[run.id] * len(ids), generation=[numbers[split]] * len(ids))
        numbers[split] += 1
        writers.write(run.attempt, run.rank, rows)
    if not writers.total:
        reasons = format_counts(report.skipped)
        raise RunError(
            f"no rollouts in {run.settings['imported_from']}{': ' + reasons if reasons else ''}; check --from"
        )
    report.rollouts = writers.total
    report.marked = writers.close(report.skipped)


class _Writers:
    """Writes the run, with files for each attempt and rank of the rollouts, as the ranks themselves would."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._writers: dict[tuple[int, int], RunWriter] = {}
        self._stored: dict[tuple[int, int], Counter[str]] = {}

    @property
    def total(self) -> int:
        """How many rollouts were written."""
        return sum(stored.total() for stored in self._stored.values())

    def write(self, attempt: int, rank: int, rows: Sequence[Rollout]) -> None:
        """Write rollouts of one generation."""
        writer = self._writer(attempt, rank)
        writer.write(rows[0].split, rows)
        self._stored[attempt, rank][rows[0].split] += len(rows)

    def write_in_place(self, rollouts: Sequence[Rollout]) -> None:
        """Write rollouts of one generation that have an id and an index."""
        by_rank: dict[int, list[Rollout]] = {}
        for rollout in sorted(rollouts, key=lambda rollout: rollout.index):
            by_rank.setdefault(rollout.rank, []).append(replace(rollout, run_id=self._run.id))
        for rank, rows in by_rank.items():
            self.write(rows[0].attempt, rank, rows)

    def _writer(self, attempt: int, rank: int) -> RunWriter:
        if (attempt, rank) not in self._writers:
            self._writers[attempt, rank] = RunWriter(replace(self._run, attempt=attempt, rank=rank))
            self._stored[attempt, rank] = Counter()
        return self._writers[attempt, rank]

    def close(self, skipped: Mapping[str, int]) -> int:
        """Write the end of the run, with the skipped rows in the file of rank 0, and return how many
        values were lost.
        """
        main = min(
            (key for key in self._writers if key[1] == self._run.rank), default=(self._run.attempt, self._run.rank)
        )
        self._writer(*main)
        marked = sum(len(writer.lost) for writer in self._writers.values())
        lost = {"unserialisable_field": marked} if marked else {}
        for key, writer in sorted(self._writers.items(), key=lambda item: item[0]):
            writer.close({"rollouts": dict(self._stored[key]), "drops": {**skipped, **lost} if key == main else {}})
        return marked
