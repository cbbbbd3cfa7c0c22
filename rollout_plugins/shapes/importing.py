"""Rollouts that other libraries left on disk, turned into a run that everything here opens.

    report = import_rollouts("verl", "ckpts/rollout_data", "outputs")
    open_run(report.dir)

Each format is a module with `NAME`, `LACKS` (what the format does not hold, for people) and `read(path)`, which
yields rollouts, and a `Lost` with its reason for each row that it cannot make one of.
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
"""Names of the formats, each with its module."""
_TOLD_EVERY = 500
#: Split, step and, where the format says it, the generation; and whether its rollouts have a place already.
_Generation = tuple[str, int, Any, bool]


@dataclass(slots=True)
class Report:
    """What an import did."""

    dir: Path
    """The new run's folder."""
    rollouts: int = 0
    """How many it holds."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows that could not be read, by reason."""
    lacks: tuple[str, ...] = ()
    """What the format does not hold."""
    marked: int = 0
    """Values that no field could hold; a mark stands in their place."""


def import_rollouts(
    format_name: str,
    path: str | Path,
    out: str | Path,
    *,
    split: str | None = None,
    progress: Callable[[str, int, int], object] = lambda *_: None,
) -> Report:
    """Read rollouts in another library's format and write them as a new run inside `out`.

    progress: called with what is being done, how much of it is, and of how much (0: not known yet).
    """
    if format_name not in FORMATS:
        raise RunError(f"{format_name!r} is not a format; the formats are {', '.join(FORMATS)}")
    source = Path(path)
    if not source.exists():
        raise RunError(f"{source} does not exist; give the file or the folder that {format_name} wrote")
    reader = import_module(f"rollout_plugins.shapes.{FORMATS[format_name]}")
    report = Report(_folder(Path(out), format_name, source), lacks=reader.LACKS)
    names, sizes = _overview(_told(_read(reader, source, split, Counter()), "reading", 0, progress))
    hidden = report.dir.with_name(f".{report.dir.name}.{secrets.token_hex(4)}")
    run = Run(
        id=report.dir.name,
        dir=str(hidden),
        trainer=reader.NAME,
        host=f"import:{format_name}",
        reward_names=names,
        settings={"imported_from": str(source.resolve()), "lacks": list(reader.LACKS)},
    )
    found = _told(_read(reader, source, split, report.skipped), "writing", sizes.total(), progress)
    try:
        _write(_generations(found, sizes), run, report, _first_free(sizes))
        hidden.rename(report.dir)  # only a whole import has the name of a run
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return report


def _folder(out: Path, format_name: str, source: Path) -> Path:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", source.resolve().stem).strip("-.") or "rollouts"
    folder = out / "rollouts" / f"{format_name}-{stem[:60]}"
    if folder.exists():
        raise RunError(f"{folder} exists already; remove it, or choose another folder with --out")
    return folder


def _read(reader: Any, source: Path, split: str | None, skipped: Counter[str]) -> Iterator[Unplaced]:
    """Every rollout in the source; a row that is not one is counted by its reason."""
    ids: set[str] = set()
    for one in reader.read(source):
        if isinstance(one, Lost):
            skipped[one.reason] += 1
            continue
        if one.has_place:
            if one.rollout.id in ids:
                skipped["rollout that an earlier line has"] += 1
                continue
            ids.add(one.rollout.id)
        yield one if split is None else replace(one, rollout=replace(one.rollout, split=split))


def _told(
    found: Iterator[Unplaced], what: str, of: int, progress: Callable[[str, int, int], object]
) -> Iterator[Unplaced]:
    """Says now and then how many there were."""
    for number, one in enumerate(found, 1):
        yield one
        if number % _TOLD_EVERY == 0:
            progress(what, number, of)


def _overview(found: Iterator[Unplaced]) -> tuple[tuple[str, ...], Counter[Any]]:
    """The names of all rewards, and how many rollouts each generation has."""
    names: dict[str, None] = {}
    sizes: Counter[Any] = Counter()
    for one in found:
        names.update(dict.fromkeys(one.rollout.rewards))
        sizes[_generation(one)] += 1
    return tuple(names), sizes


def _generation(found: Unplaced) -> _Generation:
    """Rollouts of one generation, by default those of the same split and step, wherever in the files they stand."""
    return found.rollout.split, found.rollout.step, found.generation, found.has_place


def _generations(found: Iterator[Unplaced], sizes: Counter[Any]) -> Iterator[list[Unplaced]]:
    """The rollouts of each generation, as soon as all of them were read."""
    waiting: dict[_Generation, list[Unplaced]] = {}
    for one in found:
        key = _generation(one)
        waiting.setdefault(key, []).append(one)
        if len(waiting[key]) == sizes[key]:
            yield waiting.pop(key)
    yield from waiting.values()  # the files became shorter meanwhile


def _first_free(sizes: Counter[_Generation]) -> Counter[str]:
    """The first number of each split that no generation with a place has."""
    numbers: Counter[str] = Counter()
    for split, _, generation, has_place in sizes:
        if has_place:
            numbers[split] = max(numbers[split], generation[1] + 1)
    return numbers


def _write(generations: Iterator[list[Unplaced]], run: Run, report: Report, numbers: Counter[str]) -> None:
    """`numbers`: the number of each split's next generation."""
    writers = _Writers(run)
    names = BatchNames()
    for batch in generations:
        if batch[0].has_place:
            writers.write_in_place([one.rollout for one in batch])
            continue
        split, step = batch[0].rollout.split, batch[0].rollout.step
        name = names.name(run, split, step)
        rows = assign_groups(collect_batch(batch))
        ids = [f"{name}.0.{index}" for index in rows["index"]]
        rows.set_columns(id=ids, run_id=[run.id] * len(ids), generation=[numbers[split]] * len(ids))
        numbers[split] += 1
        writers.write(run.attempt, run.rank, rows)
    if not writers.total:
        what = format_counts(report.skipped)
        raise RunError(f"no rollouts found there{': ' + what if what else ''}; is it the right --from?")
    report.rollouts = writers.total
    report.marked = writers.close(report.skipped)


class _Writers:
    """Writes the run, with files for each attempt and rank that rollouts are of, as the ranks themselves would."""

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
        """Write rollouts of one generation that have an id and a place."""
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
        """Note the end, and in the file of rank 0 what was skipped. Returns how many values could not be kept."""
        main = min(
            (key for key in self._writers if key[1] == self._run.rank), default=(self._run.attempt, self._run.rank)
        )
        self._writer(*main)
        marked = sum(len(writer.lost) for writer in self._writers.values())
        lost = {"unserialisable_field": marked} if marked else {}
        for key, writer in sorted(self._writers.items(), key=lambda item: item[0]):
            writer.close({"rollouts": dict(self._stored[key]), "drops": {**skipped, **lost} if key == main else {}})
        return marked
