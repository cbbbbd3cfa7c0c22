"""Read runs: lazily, live or ended, whole or damaged.

run = open_run("out")
for rollout in run.rollouts(step="last", where="reward < 0", order="-reward", limit=10): ...
run.sql("select step, avg(reward) from rollouts group by step order by step").to_pandas()
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rollout_plugins.content.hashing import content_hash
from rollout_plugins.errors import DamageWarning, RunError, need
from rollout_plugins.reading import annotating as annotate
from rollout_plugins.reading import summary
from rollout_plugins.reading.damage import Damaged
from rollout_plugins.reading.filters import Filters
from rollout_plugins.reading.find_runs import found_in, newest_in
from rollout_plugins.reading.missing import missing_files, missing_rollouts
from rollout_plugins.reading.multi_node import absent
from rollout_plugins.reading.notebooks import draw_tables
from rollout_plugins.reading.part_sums import PartSums
from rollout_plugins.reading.query_session import Session, look_again
from rollout_plugins.reading.recorded_facts import Facts
from rollout_plugins.reading.relocated_parts import gone
from rollout_plugins.reading.search_results import Matches, Rollouts
from rollout_plugins.reading.small_files import SmallFiles
from rollout_plugins.reading.tables import Memory
from rollout_plugins.store.parts import find_parts
from rollout_plugins.store.schema import TYPES
from rollout_plugins.system.labels import count, format_counts, format_not_finite, run_name
from rollout_plugins.system.node_folders import nodes_of
from rollout_plugins.system.remote_runs import display_place, public_path

if TYPE_CHECKING:
    from rollout_hookspecs import Finding, Rollout, Run

    from rollout_plugins.reading.checking import Checked
    from rollout_plugins.reading.export import Sent


def open_run(path: str | Path | Sequence[str | Path]) -> StoredRun:
    """Open a run: a run's folder or URL, or the newest of the runs that `runs` finds there.

    Of a run that several nodes wrote, each to a disk of its own, give a list of their folders or a folder of all.
    """
    run = StoredRun(newest_in(path))
    for line in run.absent:
        warnings.warn(f"{run.place}: {line}", DamageWarning, stacklevel=2)
    return run


def runs(path: str | Path) -> Runs:
    """Every run in a folder or at a URL, in folders below it, and beside it when it is an output_dir; oldest first."""
    return Runs([StoredRun(folder) for folder in found_in(path)])


class StoredRun:
    """A run on disk or elsewhere. Nothing is loaded before it is asked for; `refresh()` sees what a live run added."""

    def __init__(self, folder: Path) -> None:
        self.dir = folder
        self.damaged = Damaged(folder)
        """Files, or single rollouts, that could not be read, and why; the rest of the run is there."""
        self._memory = Memory(SmallFiles(), PartSums())
        self.refresh()

    def refresh(self) -> None:
        """Look again at what is there."""
        look_again([self.dir])
        self.damaged.clear()
        self._all: Matches | None = None
        if urls := list(gone(self.dir).values()):
            where = " and ".join(dict.fromkeys(urls))
            what = f"what was removed here ({count(len(urls), 'part')})"
            here = quote(str(nodes_of(self.dir)[0].parent))
            self.damaged[what] = f"it is in {where}: rollouts pull {quote(urls[-1])} {here}"
        self._facts = Facts(self.dir, self.damaged)
        for line in self.contradictions:
            warnings.warn(f"{self.place}: {line}", DamageWarning, stacklevel=2)
        self._session = Session({self.dir: self.damaged}, self._memory)

    @property
    def unreadable(self) -> list[str]:
        """What of the run cannot be read, in a line each: found so far, recorded and in no file, and missing files.

        What was recorded is compared with what the files hold by attempt, rank and split.
        """
        lines = self._session.ask(lambda database: missing_rollouts(self.dir, self.attempts, database))
        return [*map(self.damaged.told, self.damaged), *lines, *missing_files(self.dir)]

    def verify(self) -> None:
        """Read every file to its end, so that `damaged` names all that cannot be read."""
        self._session.verify()

    @property
    def info(self) -> Run:
        """The run's facts."""
        return self._facts.info

    @property
    def contradictions(self) -> list[str]:
        """What nodes or ranks of the run say that others say differently, in a line each."""
        return self._facts.contradictions

    @property
    def absent(self) -> list[str]:
        """What is known to belong to the run and is not in this folder, in a line each: other nodes have it."""
        return absent(self.dir, self._facts)

    @property
    def name(self) -> str:
        """What a person calls the run: its model and the trainer's output folder."""
        return run_name(self.info)

    @property
    def place(self) -> str:
        """Where it is: its folder, or its URL. Of a run at a URL, `dir` holds what was looked at."""
        return display_place(self.dir)

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """What each start of the run noted: when, from which step, how many rollouts, what was dropped and why."""
        return self._facts.attempts

    @property
    def drops(self) -> dict[str, int]:
        """What was lost, by reason, over all ranks and attempts."""
        return self._facts.total("drops")

    @property
    def untrained(self) -> dict[str, int]:
        """Rollouts that the trainer generated and did not train on, by reason; they are all here.

        Without those of steps that a resumed training did again.
        """
        return self._facts.untrained

    @property
    def unsent(self) -> dict[str, int]:
        """Rollouts that a sink missed while training, by sink; they are all here, and `export` sends them."""
        return self._facts.total("unsent")

    @property
    def skipped(self) -> dict[str, int]:
        """Rollouts that plugins did not select for the sinks, by plugin; they are all here."""
        return self._facts.total("skipped")

    @property
    def not_finite(self) -> dict[str, dict[str, int]]:
        """Rewards that are NaN or infinite, by column: `{"reward/correct": {"nan": 7, "infinite": 1}}`."""
        rows = self._session.ask(lambda known: known.rows(summary.NOT_FINITE))
        return {name: {"nan": nan, "infinite": infinite} for name, nan, infinite in rows}

    @property
    def plugin_errors(self) -> dict[str, int]:
        """How often each plugin failed; after three times in a row it was off for the rest of its run."""
        return self._facts.total("plugin_errors")

    @property
    def warnings(self) -> dict[str, int]:
        """What recording warned of, and how often."""
        return self._facts.total("warnings")

    @property
    def costs(self) -> dict[str, float]:
        """What recording took: seconds on the training thread and beside it, bytes written, and most in the queue."""
        return self._facts.costs

    @property
    def annotations(self) -> dict[str, list[str]]:
        """Who annotated the run, and with which columns."""
        return self._session.ask(
            lambda known: {name: list(producer.columns) for name, producer in known.annotated.items()}
        )

    @property
    def columns(self) -> list[str]:
        """Columns to filter, sort and select by; annotations are `<producer>.<column>`."""
        return self._session.ask(lambda known: list(known.columns))

    @property
    def files(self) -> list[Path | str]:
        """The run's Parquet files, for Spark, Ray and whatever else reads them without us; URLs of a run at a URL."""
        return [public_path(part.path) for part in find_parts(self.dir) if not part.is_journal]

    @property
    def parts(self) -> list[Path]:
        """All files of rollouts in the run's folder, those among them that are still being written to."""
        return [part.path for part in find_parts(self.dir)]

    @property
    def done_again(self) -> list[tuple[int, int]]:
        """(attempt, step): what earlier attempts recorded after the step is superseded by this attempt."""
        return self._session.ask(lambda known: known.done_again())

    def ray(self) -> Any:
        """The rollouts as a Ray dataset, with annotations in columns such as `judge.score`; nothing is loaded."""
        from rollout_plugins.reading.engines import ray_dataset

        return ray_dataset(self)

    def spark(self, session: Any) -> Any:
        """The same as a data frame of this Spark session."""
        from rollout_plugins.reading.engines import spark_dataset

        return spark_dataset(self, session)

    def daft(self) -> Any:
        """The same as a Daft data frame."""
        from rollout_plugins.reading.engines import daft_dataset

        return daft_dataset(self)

    def annotate_by(self, producer: str, function: Callable[[pa.Table], Any], **options: Any) -> int:
        """Annotate every rollout with what a function says of each batch: over all cores, or with `ray="ADDRESS"`.

        `columns`: those that the function is given, as an Arrow table. It returns a value for each row, or a dict of
        such columns.
        """
        from rollout_plugins.reading.batch_functions import annotate_by

        return annotate_by(self, producer, function, **options)

    def __len__(self) -> int:
        return int(
            self._session.ask(lambda known: known.rows("select coalesce(sum(rollouts), 0) from current_generations"))[
                0
            ][0]
        )

    @property
    def steps(self) -> list[int]:
        """Training steps that have rollouts."""
        query = (
            "select distinct step from current_generations where split = 'train' and step is not null order by step"
        )
        return [row[0] for row in self._session.ask(lambda known: known.rows(query))]

    def values(self, column: str) -> list[Any]:
        """The values that a column of numbers or short texts has anywhere in the run, in order."""
        return self._session.ask(lambda known: known.values(column))

    def rollouts(
        self,
        *,
        split: str | None = None,
        step: int | str | range | Collection[int] | None = None,
        group: int | None = None,
        rank: int | None = None,
        finish: str | None = None,
        tool: str | None = None,
        has_error: bool | None = None,
        where: str | None = None,
        search: str | None = None,
        order: str | Sequence[str] | None = None,
        limit: int | None = None,
        superseded: bool = False,
        tokens: bool = False,
    ) -> Rollouts:
        """Rollouts in the order they were made, or in the order asked for; a few at a time.

        `step`: a number, -1 or `"last"`, a range (`range(10, 20)`, `"10-20"`) or several numbers. `tool`: called this
        tool. `has_error`: it or one of its tool calls failed. `where`: a SQL condition over the columns, annotations
        (`judge.score > 0.5`) among them. `search`: text that is stored of it, in any case. `order`: columns, `-` for
        descending. `superseded`: also what a resumed attempt did again. `tokens`: with their token ids and what aligns
        with them, where those are kept; they are many times the rest, so they are not read by default.
        """
        filters = Filters(
            split=split,
            step=step,
            group=group,
            rank=rank,
            finish=finish,
            tool=tool,
            has_error=has_error,
            where=where,
            search=search,
            order=order,
            limit=limit,
            superseded=superseded,
        )
        return self._rollouts(filters, tokens=tokens)

    def get(self, rollout_id: str) -> Rollout:
        """One rollout by its id, with its tokens where those are kept."""
        if not isinstance(rollout_id, str):
            raise RunError(f"a rollout's id is text, not {rollout_id!r}; `rollouts show {self.place}` lists ids")
        for rollout in self._rollouts(Filters(id=rollout_id, superseded=True, limit=1), tokens=True):
            return rollout
        raise RunError(f"no rollout {rollout_id!r} in {self.place}; `rollouts show {self.place}` lists ids")

    def export(self, to: Any, **options: Any) -> Sent:
        """Send rollouts to a sink, each once: `run.export("trackio", cap=16, where="reward < 0")`.

        `to`: the name of an installed sink, such as `jsonl`, or a sink object. `options`: the sink's own, as a dict.
        `cap`: at most this many of each generation. `plugins`: those that format or search what is sent, besides the
        installed ones: `["redact"]`. The others are filters, as for `rollouts`.
        """
        from rollout_plugins.reading.export import export

        return export(self, to, **options)

    def group(self, rollout_id: str) -> list[Rollout]:
        """The rollout and its siblings: all answers to that prompt in that generation."""
        return list(self.siblings(self.get(rollout_id)).rollouts())

    def siblings(self, rollout: Rollout) -> Matches:
        """Where the rollout and its siblings are, for a group too large to read at once."""
        when = (rollout.generation, rollout.generation)
        same = f"attempt = {rollout.attempt}"
        return self.find(split=rollout.split, group=rollout.group, generations=when, where=same, superseded=True)

    def history(self, prompt: Rollout | str, **filters: Any) -> Iterator[Rollout]:
        """The same prompt through the whole run: that of a rollout, or one with a message of exactly this text."""
        if isinstance(prompt, str):
            return self._rollouts(Filters.of(prompt=prompt, **filters))
        if not hasattr(prompt, "prompt"):
            raise RunError(f"the prompt is {prompt!r}; give a rollout, or the text of a message")
        found = self.find_prompt(prompt, **filters).rollouts()
        wanted = content_hash(prompt.prompt)  # by ==, a prompt with a NaN in it is not even equal to itself
        return (rollout for rollout in found if content_hash(rollout.prompt) == wanted)

    def find_prompt(self, rollout: Rollout, **filters: Any) -> Matches:
        """Where rollouts are whose prompt has the same texts as this one's; images and calls in it may differ."""
        contents = [m.get("content") if isinstance(m, Mapping) else None for m in rollout.prompt]
        texts = [content if isinstance(content, str) else None for content in contents]
        return self._find(Filters.of(messages=texts, **filters))

    def search(self, text: str, **filters: Any) -> Rollouts:
        """Rollouts with this text, in any case, in whatever is stored of them.

        Looks into messages and their reasoning, calls, results and errors, names of images, columns, extra and marks,
        also as a viewer prints them: `→ no such tool: …`, `name(key=value)`. For numbers there is `where`.
        """
        return self._rollouts(Filters.of(search=text, **filters))

    def find(self, **filters: Any) -> Matches:
        """Where rollouts are, in order, to read any page of them; takes what `rollouts` takes."""
        return self._find(Filters.of(**filters))

    def count(self, **filters: Any) -> int:
        """How many rollouts match; takes what `rollouts` takes."""
        return self._session.ask(lambda known: known.total(Filters.of(**filters)))

    def tables(self, columns: Sequence[str] | None = None, **filters: Any) -> Iterator[pa.Table]:
        """Rollouts as Arrow tables of all or some columns, a few rows each; takes what `rollouts` takes."""
        annotated = columns is None or any("." in name for name in columns)
        for _, table in self._find(Filters.of(**filters), whole=annotated).tables(columns):
            yield table

    def table(self, columns: Sequence[str] | None = None, **filters: Any) -> pa.Table:
        """Rollouts as one Arrow table of all or some columns; takes what `rollouts` takes."""
        tables = list(self.tables(columns, **filters))
        if tables:
            return pa.concat_tables(tables, promote_options="permissive")
        names = list(columns) if columns is not None else self.columns
        return pa.Table.from_batches([], pa.schema([(name, TYPES.get(name, pa.float64())) for name in names]))

    def to_pandas(self, columns: Sequence[str] | None = None, **filters: Any) -> Any:
        """The same as a pandas DataFrame."""
        need("pandas")
        return self.table(columns, **filters).to_pandas()

    def to_polars(self, columns: Sequence[str] | None = None, **filters: Any) -> Any:
        """The same as a polars DataFrame."""
        return need("polars").from_arrow(self.table(columns, **filters))

    def to_dataset(self, columns: Sequence[str] | None = None, **filters: Any) -> Any:
        """The same as a Hugging Face dataset."""
        return need("datasets").Dataset(self.table(columns, **filters))

    def sql(self, query: str, *, superseded: bool = False) -> pa.Table:
        """One SELECT over `rollouts`, `messages`, `tool_calls`, `steps`, `annotations.<producer>`; an Arrow table."""
        draw_tables()
        return self._session.ask(lambda known: known.sql(query, superseded=superseded))

    def stats(self, *, width: int = 1) -> list[dict[str, Any]]:
        """Reward, spread, lengths, truncation and tools: one row for each split and step.

        Those of training also have what the trainer logged at the step, as `log/loss` and so on.
        `width`: how many neighbouring steps share a row, which the first of them names.
        """
        names, rows = self._session.ask(lambda known: known.stats(width=width))
        logged = self._session.ask(lambda known: known.logged(width=width))
        none = dict.fromkeys(next(iter(logged.values()), ()))
        figures = [dict(zip(names, row, strict=True)) for row in rows]
        return [row | (logged.get(row["step"], none) if row["split"] == "train" else none) for row in figures]

    def step_table(self) -> pa.Table:
        """What the trainer logged, such as loss and grad_norm: a row for each step, a column for each name."""
        return self.sql("select * exclude (run_id) from steps")

    @property
    def findings(self) -> list[Finding]:
        """What checks found while training, and what was stored since: the most severe first."""
        from rollout_plugins.reading.checking import stored_findings

        return stored_findings(self)

    def check(
        self,
        *,
        only: Sequence[str] = (),
        disable: Sequence[str] = (),
        plugins: Sequence[Any] = (),
        progress: Callable[[int, int], object] | None = None,
    ) -> Checked:
        """Run every installed check over the run: `run.check().findings`, the most severe first, and `.verdicts`.

        `only`, `disable`: names of checks. `plugins`: further checks, as objects. `progress`: called with the number
        of rollouts that were read so far, and with how many there are.
        """
        from rollout_plugins.reading.checking import check_run

        return check_run(self, only=only, disable=disable, plugins=plugins, progress=progress)

    def annotate(self, producer: str, rows: Iterable[Mapping[str, Any]]) -> int:
        """Add columns to rollouts: rows of `id` and values. Returns how many rows were written.

        Rows may be about rollouts that a live run does not have yet; if no row is about one it has, that is an error.
        """
        self.refresh()
        ids = self.table(["id"], superseded=True)["id"].to_pylist()
        written = annotate.annotate(self.dir, producer, list(rows), ids)
        self.refresh()
        return written

    def _rollouts(self, filters: Filters, *, tokens: bool = False) -> Rollouts:
        return Rollouts(self._find(filters), tokens=tokens)

    def _find(self, filters: Filters, *, whole: bool = True) -> Matches:
        return Matches.of(self._session, filters, whole=whole)

    def __iter__(self) -> Iterator[Rollout]:
        return self.rollouts()

    def __getitem__(self, place: Any) -> Any:
        """A rollout by its place in the run or by its id; a list of them for a slice."""
        if isinstance(place, str):
            return self.get(place)
        found = self._all = self._all or self.find()  # another thread may refresh the run
        try:
            places = range(len(found))[place]
        except IndexError:
            raise IndexError(f"the run has {count(len(found), 'rollout')}, and none at {place}") from None
        if isinstance(places, range):
            return list(found.at(places).rollouts())
        for rollout in found.page(places, 1).rollouts():
            return rollout
        raise RunError(f"rollout {place} of {self.place} cannot be read: {'; '.join(self.damaged.values())}")

    def __repr__(self) -> str:
        from rollout_plugins.show.notebook import run_line

        try:
            return run_line(self.info, self.stats())
        except RunError as error:
            return f"<StoredRun {self.name!r} in {self.place}: {error}>"

    def _repr_html_(self) -> str:
        from rollout_plugins.show.notebook import run_html

        return run_html(
            self.info,
            self.stats(),
            self.findings,
            **{
                "annotated by": ", ".join(self.annotations),
                "not finite": format_not_finite(self.not_finite),
                "lost": format_counts(self.drops),
                "not trained on": format_counts(self.untrained),
                "not sent": format_counts(self.unsent, "to "),
                "errors of plugins": format_counts(self.plugin_errors),
                "warnings": "; ".join(self.warnings),
                "damaged": ", ".join(self.damaged),
            },
        )


class Runs(Sequence[StoredRun]):
    """Several runs, to compare: a sequence of them, and SQL over all of them at once (`run_id` tells them apart)."""

    def __init__(self, found: Sequence[StoredRun]) -> None:
        self._found = tuple(found)
        self._session = Session({run.dir: run.damaged for run in found})

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, place: Any) -> Any:
        return self._found[place]

    def sql(self, query: str, *, superseded: bool = False) -> pa.Table:
        """One SELECT over the rollouts of all the runs."""
        draw_tables()
        return self._session.ask(lambda known: known.sql(query, superseded=superseded))

    def __repr__(self) -> str:
        return "\n  ".join([f"{count(len(self), 'run')}:", *map(repr, self)])

    def compare(self) -> list[dict[str, Any]]:
        """One row for each run: rollouts, steps, first and last reward, and the settings that are not all alike."""
        from rollout_plugins.reading.comparing import compare

        return compare(self)

    def _repr_html_(self) -> str:
        from rollout_plugins.show.notebook import rows_html

        return rows_html(self.compare())
