"""Open and read runs, whether they are live, finished or damaged. Nothing is loaded until it is needed.

run = open_run("out")
for rollout in run.rollouts(step="last", where="reward < 0", order="-reward", limit=10): ...
run.sql("select step, avg(reward) from rollouts group by step order by step").to_pandas()
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from rollout_hookspecs import Rollout

from rollout_plugins.errors import DamageWarning, RunError
from rollout_plugins.reading import annotating as annotate
from rollout_plugins.reading.damage import Damaged
from rollout_plugins.reading.filters import Filters, RolloutFilters
from rollout_plugins.reading.find_runs import find_all_runs, find_newest_run
from rollout_plugins.reading.health import RunHealth
from rollout_plugins.reading.lazy_rollouts import Rollouts
from rollout_plugins.reading.notebooks import draw_tables
from rollout_plugins.reading.part_sums import PartSums
from rollout_plugins.reading.prompt_history import is_plain_text, same_prompt
from rollout_plugins.reading.query_session import Session, refresh_remote
from rollout_plugins.reading.recorded_facts import Facts
from rollout_plugins.reading.relocated_parts import missing_urls
from rollout_plugins.reading.small_files import SmallFiles
from rollout_plugins.reading.tables import Memory
from rollout_plugins.store.parts import find_parts
from rollout_plugins.store.schema import TYPES
from rollout_plugins.system.labels import count, format_counts, format_not_finite, run_name
from rollout_plugins.system.node_folders import nodes_of
from rollout_plugins.system.remote_runs import display_place, public_path

if TYPE_CHECKING:
    from rollout_hookspecs import Finding, Run
    from typing_extensions import Unpack

    from rollout_plugins.reading.checking import Checked
    from rollout_plugins.reading.export import Sent


def open_run(path: str | Path | Sequence[str | Path]) -> StoredRun:
    """Open a run's folder or URL, or the newest of the runs that `runs` finds there.

    For a run that several nodes wrote to disks of their own, pass a list of their folders, or the folder that holds
    them all.
    """
    run = StoredRun(find_newest_run(path))
    for line in run.health.absent:
        warnings.warn(f"{run.place}: {line}", DamageWarning, stacklevel=2)
    return run


def runs(path: str | Path) -> Runs:
    """Open every run in a folder or at a URL, in its subfolders, and beside it if it is an output_dir, by age."""
    return Runs([StoredRun(folder) for folder in find_all_runs(path)])


class StoredRun:
    """A run in a folder or at a URL. Nothing is loaded until you ask for it; `refresh()` picks up new rollouts."""

    def __init__(self, folder: Path) -> None:
        self.dir = folder
        """The run's folder. For a run at a URL, a local folder with its small files."""
        self.place = display_place(folder)
        """Where the run is: its folder or its URL."""
        self._damaged = Damaged(folder)
        self._memory = Memory(SmallFiles(), PartSums())
        self.refresh()

    def refresh(self) -> None:
        """Pick up what was written since the run was opened or last refreshed."""
        refresh_remote([self.dir])
        self._damaged.clear()
        self._all: Rollouts | None = None
        if urls := list(missing_urls(self.dir).values()):
            places = " and ".join(dict.fromkeys(urls))
            removed = f"what was removed here ({count(len(urls), 'part')})"
            here = quote(str(nodes_of(self.dir)[0].parent))
            self._damaged[removed] = f"it is in {places}: rollouts pull {quote(urls[-1])} {here}"
        self._facts = Facts(self.dir, self._damaged)
        self.session = Session({self.dir: self._damaged}, self._memory)
        self.health = RunHealth(self.dir, self._damaged, self._facts, self.session)
        """What is wrong with the run, and what recording it cost: see `RunHealth`."""
        for line in self.health.contradictions:
            warnings.warn(f"{self.place}: {line}", DamageWarning, stacklevel=2)

    @property
    def info(self) -> Run:
        """The facts recorded about the run: trainer, model, settings, versions."""
        return self._facts.info

    @property
    def name(self) -> str:
        """A readable name: the model and the trainer's output folder."""
        return run_name(self.info)

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """One dict for each start of the run: when, from which step, how many rollouts, and what was lost."""
        return self._facts.attempts

    @property
    def annotations(self) -> dict[str, list[str]]:
        """The producers that annotated the run, with the columns of each."""
        return self.session.ask(
            lambda database: {name: list(producer.columns) for name, producer in database.annotated.items()}
        )

    @property
    def columns(self) -> list[str]:
        """The columns to filter, sort and select by; annotations are named `<producer>.<column>`."""
        return self.session.ask(lambda database: list(database.columns))

    @property
    def files(self) -> list[Path | str]:
        """The run's Parquet files, for tools that read Parquet themselves; URLs if the run is at a URL."""
        return [public_path(part.path) for part in find_parts(self.dir) if not part.is_journal]

    @property
    def steps(self) -> list[int]:
        """The training steps that have rollouts, in order."""
        query = (
            "select distinct step from current_generations where split = 'train' and step is not null order by step"
        )
        return [row[0] for row in self.session.ask(lambda database: database.rows(query))]

    def values(self, column: str) -> list[Any]:
        """Return the distinct values of a column of numbers or short texts, in order."""
        return self.session.ask(lambda database: database.values(column))

    def rollouts(self, *, tokens: bool = False, **filters: Unpack[RolloutFilters]) -> Rollouts:
        """Return the rollouts that match, as a sequence that reads them from disk while you iterate.

        They come in the order they were recorded, unless you pass `order`. With `tokens`, each rollout has its token
        ids, log-probabilities and masks, if the run recorded them; they are much larger than the rest.
        """
        return Rollouts.matching(self.session, Filters.of(**filters), tokens=tokens)

    def get(self, rollout_id: str) -> Rollout:
        """Return the rollout with this id, with its tokens if the run recorded them."""
        if not isinstance(rollout_id, str):
            raise RunError(f"a rollout's id is text, not {rollout_id!r}; `rollouts show {self.place}` lists ids")
        with_id = Filters(id=rollout_id, superseded=True, limit=1)
        for rollout in Rollouts.matching(self.session, with_id, tokens=True):
            return rollout
        raise RunError(f"no rollout {rollout_id!r} in {self.place}; `rollouts show {self.place}` lists ids")

    def siblings(self, rollout: Rollout | str) -> Rollouts:
        """Return the group of a rollout, or of a rollout's id: all answers to its prompt in its generation."""
        member = rollout if isinstance(rollout, Rollout) else self.get(rollout)
        return Rollouts.matching(
            self.session,
            Filters(
                split=member.split,
                group=member.group,
                generations=(member.generation, member.generation),
                where=f"attempt = {member.attempt}",
                superseded=True,
            ),
        )

    def history(self, prompt: Rollout | str, **filters: Unpack[RolloutFilters]) -> Rollouts:
        """Return the rollouts of one prompt through the run.

        `prompt`: a rollout with that prompt, or the whole text of one of the prompt's messages.
        """
        if isinstance(prompt, str):
            return Rollouts.matching(self.session, Filters.of(prompt=prompt, **filters))
        if not hasattr(prompt, "prompt"):
            raise RunError(f"the prompt is {prompt!r}; give a rollout, or the text of a message")
        candidates = Rollouts.matching(self.session, Filters.of(messages=prompt.prompt, **filters))
        if all(map(is_plain_text, prompt.prompt)):
            return candidates
        return candidates.at([position for position, _ in same_prompt(candidates.numbered(), prompt.prompt)])

    def count(self, **filters: Unpack[RolloutFilters]) -> int:
        """Return how many rollouts match, without reading them."""
        return self.session.ask(lambda database: database.total(Filters.of(**filters)))

    def table(self, columns: Sequence[str] | None = None, **filters: Unpack[RolloutFilters]) -> pa.Table:
        """Return an Arrow table of some or all columns, with a row for each rollout that matches.

        `run.table().to_pandas()`, `polars.from_arrow(run.table())` and `datasets.Dataset(run.table())` convert it.
        """
        tables = list(self.batches(columns, **filters))
        if tables:
            return pa.concat_tables(tables, promote_options="permissive")
        names = list(columns) if columns is not None else self.columns
        return pa.Table.from_batches([], pa.schema([(name, TYPES.get(name, pa.float64())) for name in names]))

    def batches(self, columns: Sequence[str] | None = None, **filters: Unpack[RolloutFilters]) -> Iterator[pa.Table]:
        """Return the rows of `table` as an iterator of small Arrow tables, for a run larger than memory."""
        annotated = columns is None or any("." in name for name in columns)
        matching = Rollouts.matching(self.session, Filters.of(**filters), annotated=annotated)
        return (table for _, table in matching.tables(columns))

    def dataset(self, engine: Literal["ray", "spark", "daft"], session: Any = None) -> Any:
        """Return all rollouts as a Ray dataset, a Spark or a Daft data frame, which read the files themselves.

        Annotations are columns such as `judge.score`. `session`: your Spark session.
        """
        from rollout_plugins.reading.engines import open_dataset

        return open_dataset(self, engine, session)

    def sql(self, query: str, *, superseded: bool = False) -> pa.Table:
        """Run one SELECT over `rollouts`, `messages`, `tool_calls`, `steps` and `annotations.<producer>`.

        `steps` holds what the trainer logged, such as loss and grad_norm: a row for each step.
        """
        draw_tables()
        return self.session.ask(lambda database: database.sql(query, superseded=superseded))

    def stats(self, *, width: int = 1) -> list[dict[str, Any]]:
        """Return reward, spread, lengths, truncation and tool use: a dict for each split and step.

        Training steps also have what the trainer logged, as `log/loss` and so on. `width`: how many neighbouring
        steps one dict covers; its `step` is the first of them.
        """
        names, rows = self.session.ask(lambda database: database.stats(width=width))
        logged = self.session.ask(lambda database: database.logged(width=width))
        not_logged = dict.fromkeys(next(iter(logged.values()), ()))
        stats = [dict(zip(names, row, strict=True)) for row in rows]
        return [
            row | (logged.get(row["step"], not_logged) if row["split"] == "train" else not_logged) for row in stats
        ]

    @property
    def findings(self) -> list[Finding]:
        """The stored findings of checks, from training and from `rollouts check --save`, the most severe first."""
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
        """Add columns to rollouts, and return the number of rows written. Each row is a dict of `id` and values.

        Rows for rollouts that a live run does not have yet are accepted, if at least one row matches a rollout.
        """
        self.refresh()
        ids = self.table(["id"], superseded=True)["id"].to_pylist()
        written = annotate.annotate(self.dir, producer, list(rows), ids)
        self.refresh()
        return written

    def annotate_by(self, producer: str, function: Callable[[pa.Table], Any], **options: Any) -> int:
        """Annotate every rollout with the result of a function of each batch, on all cores or with `ray="ADDRESS"`.

        `columns`: the columns of the Arrow table that the function receives. It returns a value for each row, or a
        dict of such columns.
        """
        from rollout_plugins.reading.batch_functions import annotate_by

        return annotate_by(self, producer, function, **options)

    def export(self, to: Any, **options: Any) -> Sent:
        """Send each rollout to a sink once: `run.export("trackio", cap=16, where="reward < 0")`.

        `to`: the name of an installed sink, such as `jsonl`, or a sink object. `options`: the sink's own, as a dict.
        `cap`: at most this many rollouts of each generation. `plugins`: those that format or filter what is sent,
        besides the installed ones: `["redact"]`. All others are filters, as for `rollouts`.
        """
        from rollout_plugins.reading.export import export

        return export(self, to, **options)

    def __len__(self) -> int:
        query = "select coalesce(sum(rollouts), 0) from current_generations"
        return int(self.session.ask(lambda database: database.rows(query))[0][0])

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self.rollouts())

    def __getitem__(self, key: Any) -> Any:
        """Return the rollout at an index or with an id, or a list of rollouts for a slice."""
        if isinstance(key, str):
            return self.get(key)
        rollouts = self._all = self._all or self.rollouts()  # another thread may refresh the run
        try:
            return rollouts[key]
        except IndexError:
            raise IndexError(f"the run has {count(len(rollouts), 'rollout')}, and none at {key}") from None
        except RunError:
            reasons = "; ".join(self.health.damaged.values())
            raise RunError(f"rollout {key} of {self.place} cannot be read: {reasons}") from None

    def __repr__(self) -> str:
        from rollout_plugins.show.notebook import run_line

        try:
            return run_line(self.info, self.stats())
        except RunError as error:
            return f"<StoredRun {self.name!r} in {self.place}: {error}>"

    def _repr_html_(self) -> str:
        from rollout_plugins.show.notebook import run_html

        health = self.health
        return run_html(
            self.info,
            self.stats(),
            self.findings,
            **{
                "annotated by": ", ".join(self.annotations),
                "not finite": format_not_finite(health.not_finite),
                "lost": format_counts(health.drops),
                "not trained on": format_counts(health.untrained),
                "not sent": format_counts(health.unsent, "to "),
                "errors of plugins": format_counts(health.plugin_errors),
                "warnings": "; ".join(health.warnings),
                "damaged": ", ".join(health.damaged),
            },
        )


class Runs(Sequence[StoredRun]):
    """Several runs to compare: a sequence of them, with SQL over all of them (`run_id` is the run of a row)."""

    def __init__(self, opened: Sequence[StoredRun]) -> None:
        self._runs = tuple(opened)
        self._session = Session({run.dir: run.health.damaged for run in opened})

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: Any) -> Any:
        return self._runs[index]

    def sql(self, query: str, *, superseded: bool = False) -> pa.Table:
        """Run one SELECT over the rollouts of all the runs."""
        draw_tables()
        return self._session.ask(lambda database: database.sql(query, superseded=superseded))

    def __repr__(self) -> str:
        return "\n  ".join([f"{count(len(self), 'run')}:", *map(repr, self)])

    def compare(self) -> list[dict[str, Any]]:
        """Return a dict for each run: rollouts, steps, first and last reward, and the settings that differ."""
        from rollout_plugins.reading.comparing import compare

        return compare(self)

    def _repr_html_(self) -> str:
        from rollout_plugins.show.notebook import rows_html

        return rows_html(self.compare())
