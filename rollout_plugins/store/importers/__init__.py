"""Rollouts that other libraries left on disk, turned into a run that everything here opens.

    report = import_rollouts("verl", "ckpts/rollout_data", "outputs")
    open_run(report.dir)

Each format is a module with `NAME`, `LACKS` (what the format does not hold, for people) and `read`.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Rollout, Run

from rollout_plugins.errors import RunError
from rollout_plugins.store.write import RunWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollout_plugins.store.importers.files import Skip

FORMATS = ("trl", "verl", "verifiers", "tinker", "areal", "openai-jsonl")
BATCH = 256


@dataclass(slots=True)
class Found:
    """A rollout as a format holds it; its id and its place in the run are decided later."""

    rollout: Rollout
    group: Any = None
    """What all answers to the same prompt of the same generation have in common."""


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


def import_rollouts(format_name: str, path: str | Path, out: str | Path, *, split: str | None = None) -> Report:
    """Read rollouts in another library's format and write them as a new run inside `out`."""
    if format_name not in FORMATS:
        raise RunError(f"no format {format_name!r}; the formats are {', '.join(FORMATS)}")
    source = Path(path)
    if not source.exists():
        raise RunError(f"{source} does not exist; give the file or the folder that {format_name} wrote")
    reader = import_module(f"rollout_plugins.store.importers.{format_name.replace('-', '_')}")
    report = Report(_folder(Path(out), format_name, source), lacks=reader.LACKS)
    names, sizes = _overview(_with_split(reader.read(source, lambda _: None), split))
    hidden = report.dir.with_name(f".{report.dir.name}.{secrets.token_hex(4)}")
    run = Run(
        id=report.dir.name,
        dir=str(hidden),
        trainer=reader.NAME,
        host=f"import:{format_name}",
        reward_names=names,
        settings={"imported_from": str(source.resolve()), "lacks": list(reader.LACKS)},
    )
    found = _with_split(reader.read(source, _counting(report.skipped)), split)
    try:
        _write(_generations(found, sizes), run, report)
        hidden.rename(report.dir)  # only a whole import has the name of a run
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return report


def _with_split(found: Iterator[Found], split: str | None) -> Iterator[Found]:
    for one in found:
        if split is not None:
            one.rollout = replace(one.rollout, split=split)  # type: ignore[arg-type]
        yield one


def _overview(found: Iterator[Found]) -> tuple[tuple[str, ...], Counter[Any]]:
    """The names of all rewards, and how many rollouts each generation has."""
    names: dict[str, None] = {}
    sizes: Counter[Any] = Counter()
    for one in found:
        names.update(dict.fromkeys(one.rollout.rewards))
        sizes[_generation(one)] += 1
    return tuple(names), sizes


def _generation(found: Found) -> tuple[str, int]:
    """Rollouts of the same split and step are one generation, wherever in the files they stand."""
    return found.rollout.split, found.rollout.step


def _counting(skipped: Counter[str]) -> Skip:
    def skip(reason: str) -> None:
        skipped[reason] += 1

    return skip


def _folder(out: Path, format_name: str, source: Path) -> Path:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", source.resolve().stem).strip("-.") or "rollouts"
    folder = out / "rollouts" / f"{format_name}-{stem[:60]}"
    if folder.exists():
        raise RunError(f"{folder} exists already; remove it, or choose another folder with --out")
    return folder


def _write(generations: Iterator[list[Rollout]], run: Run, report: Report) -> None:
    writer: RunWriter | None = None
    for batch in generations:
        writer = writer or RunWriter(run)
        rows = [replace(r, id=f"{run.id}.1.{r.split[0]}{r.generation}.0.{r.index}", run_id=run.id) for r in batch]
        writer.write(rows[0].split, rows)
        report.rollouts += len(rows)
    if writer is None:
        what = ", ".join(f"{count:,} {reason}" for reason, count in report.skipped.items())
        raise RunError(f"no rollouts found there{': ' + what if what else ''}; is it the right --from?")
    report.marked = len(writer.lost)
    lost = {"unserialisable_field": report.marked} if report.marked else {}
    writer.close({"rollouts": report.rollouts, "drops": {**report.skipped, **lost}})


def _generations(found: Iterator[Found], sizes: Counter[Any]) -> Iterator[list[Rollout]]:
    """The rollouts of each generation, with their groups and places in it, as soon as all of them were read."""
    numbers: Counter[str] = Counter()
    waiting: dict[tuple[str, int], list[Found]] = {}
    for one in found:
        key = _generation(one)
        waiting.setdefault(key, []).append(one)
        if len(waiting[key]) == sizes[key]:
            yield _placed(waiting.pop(key), numbers)
    for batch in waiting.values():  # the files became shorter meanwhile
        yield _placed(batch, numbers)


def _placed(batch: Sequence[Found], numbers: Counter[str]) -> list[Rollout]:
    split = batch[0].rollout.split
    generation = numbers[split]
    numbers[split] += 1
    keys = [repr(found.group if found.group is not None else found.rollout.prompt) for found in batch]
    return [replace(rollout, generation=generation) for rollout in placed(batch, keys)]


def placed(batch: Sequence[Found], keys: Sequence[Any]) -> list[Rollout]:
    """The rollouts of one generation with their places; those of one key are a group."""
    groups = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    sizes = Counter(keys)
    return [
        replace(found.rollout, index=index, group=groups[key], group_size=sizes[key])
        for index, (found, key) in enumerate(zip(batch, keys, strict=True))
    ]
