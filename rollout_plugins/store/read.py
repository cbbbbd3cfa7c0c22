"""Read one run: lazily, live or ended, whole or damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rollout_hookspecs import Rollout, Run

from rollout_plugins.errors import RunError
from rollout_plugins.store.codec import untagged
from rollout_plugins.store.schema import VERSION, from_rows
from rollout_plugins.store.write import read_journal

_ORDER = ("split", "generation", "attempt", "index", "rank")


def open_run(path: str | Path) -> StoredRun:
    """Open a run: a run's folder, a `rollouts` folder or a trainer's output_dir; the newest run in it."""
    root = Path(path)
    if not root.exists():
        raise RunError(f"{root} does not exist; give a run's folder, a rollouts folder or the trainer's output_dir")
    for folder in (root, root / "rollouts"):
        if _is_run(folder):
            return StoredRun(folder)
        runs = find_runs(folder)
        if runs:
            return StoredRun(runs[-1])
    raise RunError(f"no run found in {root}; expected run.json in it, in one of its folders, or in {root}/rollouts/*")


def find_runs(folder: str | Path) -> list[Path]:
    """Runs directly inside a folder, oldest first."""
    folder = Path(folder)
    found = [path for path in folder.iterdir() if _is_run(path)] if folder.is_dir() else []
    return sorted(found, key=lambda path: min(file.stat().st_mtime for file in _run_files(path)))


def _run_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("run.json"), *folder.glob("run-*.json")])


def _is_run(folder: Path) -> bool:
    return bool(_run_files(folder))


@dataclass(frozen=True, slots=True)
class Part:
    """One file of rollouts."""

    path: Path
    split: str
    attempt: int
    rank: int

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        if self.path.suffix == ".parquet":
            return pq.read_table(self.path, columns=list(columns) if columns else None)
        table = read_journal(self.path)
        return table.select(list(columns)) if columns else table


class StoredRun:
    """A run on disk. Nothing is loaded before it is asked for; `refresh()` sees what a live run added."""

    def __init__(self, folder: Path) -> None:
        self.dir = folder
        self.damaged: dict[str, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look again at what is on disk."""
        self._facts = [_read_json(path) for path in _run_files(self.dir)]
        newest = max((int(f.get("schema", 1)) for f in self._facts), default=1)
        if newest > VERSION:
            raise RunError(
                f"{self.dir} was written with schema {newest}; this version reads up to {VERSION}: "
                "pip install -U rollout-plugins"
            )
        self._parts = self._find_parts()
        self._index: pa.Table | None = None

    def _find_parts(self) -> list[Part]:
        found: dict[str, Part] = {}
        for path in sorted((self.dir / "data").glob("*/*.*")):
            if path.suffix not in {".arrows", ".parquet"} or path.name.startswith("."):
                continue
            numbers = path.stem.split("-")
            if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
                continue
            part = Part(path, path.parent.name, int(numbers[0]), int(numbers[1]))
            found[f"{part.split}/{path.stem}"] = part  # sorted: .parquet comes after .arrows and wins
        return list(found.values())

    @property
    def info(self) -> Run:
        """The run's facts."""
        known = {f.name for f in fields(Run)}
        facts = {k: untagged(v) for k, v in (self._facts[0] if self._facts else {}).items() if k in known}
        for name in ("reward_names", "reward_weights", "tools"):
            facts[name] = tuple(facts.get(name) or ())
        return Run(**{"id": self.dir.name, **facts, "dir": str(self.dir)})

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """What each start of the run noted: when, from which step, how many rollouts, what was dropped and why."""
        return [untagged(attempt) | {"rank": f.get("rank", 0)} for f in self._facts for attempt in f.get("attempts", [])]

    @property
    def drops(self) -> dict[str, int]:
        """Rollouts that were lost or left out, by reason, over all ranks and attempts."""
        total: dict[str, int] = {}
        for attempt in self.attempts:
            for reason, count in (attempt.get("drops") or {}).items():
                total[reason] = total.get(reason, 0) + count
        return total

    def __len__(self) -> int:
        return self._rows().num_rows

    @property
    def steps(self) -> list[int]:
        """Training steps that have rollouts."""
        rows = self._rows()
        steps = rows.filter(pc.equal(rows["split"], "train"))["step"]
        return sorted(pc.unique(steps).to_pylist())

    def _rows(self, *, superseded: bool = False) -> pa.Table:
        """A small table: where each rollout is, and what it is sorted and filtered by."""
        if self._index is None:
            tables = []
            for number, part in enumerate(self._parts):
                try:
                    table = part.read([f.name for f in _SMALL])
                except Exception as error:
                    self.damaged[part.path.name] = str(error)
                    continue
                places = [pa.array([number] * len(table), pa.int32()), pa.array(range(len(table)), pa.int64())]
                tables.append(table.append_column("part", places[0]).append_column("row", places[1]))
            empty = pa.schema([*_SMALL, ("part", pa.int32()), ("row", pa.int64())]).empty_table()
            table = pa.concat_tables(tables) if tables else empty
            self._index = table.sort_by([(name, "ascending") for name in _ORDER])
        return self._index if superseded else self._current(self._index)

    def _current(self, rows: pa.Table) -> pa.Table:
        """Without what a later attempt did again."""
        for attempt, step in self._restarts():
            again = pc.and_(pc.less(rows["attempt"], attempt), pc.greater(rows["step"], step))
            rows = rows.filter(pc.invert(again))
        return rows

    def _restarts(self) -> set[tuple[int, int]]:
        return {(a["attempt"], a.get("resumed_from") or 0) for a in self.attempts if a["attempt"] > 1}

    def rollouts(
        self,
        *,
        split: str | None = None,
        step: int | str | None = None,
        group: int | None = None,
        rank: int | None = None,
        limit: int | None = None,
        superseded: bool = False,
    ) -> Iterator[Rollout]:
        """Rollouts in the order they were made."""
        rows = self._rows(superseded=superseded)
        wanted = {"split": split, "step": step, "group": group, "rank": rank}
        if step == "last":
            wanted["step"] = pc.max(rows.filter(pc.equal(rows["split"], split or "train"))["step"]).as_py()
        for name, value in wanted.items():
            if value is not None:
                rows = rows.filter(pc.equal(rows[name], value))
        if limit is not None:
            rows = rows.slice(0, limit)
        yield from self._load(rows)

    def get(self, rollout_id: str) -> Rollout:
        """One rollout by its id."""
        rows = self._rows(superseded=True)
        for rollout in self._load(rows.filter(pc.equal(rows["id"], rollout_id))):
            return rollout
        raise RunError(f"no rollout {rollout_id!r} in {self.dir}")

    def _load(self, rows: pa.Table) -> Iterator[Rollout]:
        """Whole rollouts for index rows, a few at a time, in the order of the rows."""
        for start in range(0, rows.num_rows, 512):
            chunk = rows.slice(start, 512)
            made: dict[tuple[int, int], Rollout] = {}
            places = list(zip(chunk["part"].to_pylist(), chunk["row"].to_pylist(), strict=True))
            for number in dict.fromkeys(part for part, _ in places):
                taken = [row for part, row in places if part == number]
                table = self._parts[number].read().take(taken)
                made.update(zip(((number, row) for row in taken), from_rows(table.to_pylist()), strict=True))
            yield from (made[place] for place in places)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rollouts as an Arrow table, optionally some columns of it."""
        tables = [part.read(columns) for part in self._parts]
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


_SMALL = [
    pa.field("id", pa.large_string()),
    pa.field("split", pa.large_string()),
    *(pa.field(name, pa.int64()) for name in ("attempt", "step", "generation", "rank", "index", "group")),
]


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
