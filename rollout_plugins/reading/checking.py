"""Run checks over a stored run: over each generation in order, then over what the trainer logged, as in training."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from rollout_hookspecs import Finding, Outcome, Step, Verdict

from rollout_plugins.content.findings import distinct, summary
from rollout_plugins.engine import hook_results
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.delivery import as_sink
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.errors import RunError, suggest
from rollout_plugins.reading.annotating import files as annotation_files
from rollout_plugins.store.any_version import with_columns
from rollout_plugins.store.arrow_rollouts import from_rows
from rollout_plugins.store.findings import PRODUCER, findings_of, write_findings
from rollout_plugins.store.schema import SCHEMA
from rollout_plugins.system.labels import count
from rollout_plugins.system.node_folders import nodes_of
from rollout_plugins.system.remote_runs import is_remote, open_run_file, remote_reader

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

logger = logging.getLogger("rollout_plugins")

HOOKS = ("check_rollouts", "check_log", "check_run")
KEYS = ("split", "attempt", "generation", "step", "rank")


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of running checks over a run."""

    findings: list[Finding]
    """Sorted by severity, then by the step at which each began."""
    verdicts: list[Verdict]
    """One verdict for each check, in the order in which the checks ran."""

    def __repr__(self) -> str:
        head = summary(self.findings) or "nothing found"
        verdicts = Counter(verdict.verdict for verdict in self.verdicts)
        lines = [f"{finding.severity}: {finding.text}" for finding in self.findings]
        counts = f"{verdicts['clear']} checks clear, {verdicts['unobserved']} unobserved"
        return "\n  ".join([f"<Checked: {head}; {counts}>", *lines])

    def _repr_html_(self) -> str:
        from rollout_plugins.show.notebook import findings_html

        return findings_html(self.findings, self.verdicts)


Progress = Callable[[int, int], object]


def check_run(
    run: StoredRun,
    *,
    only: Sequence[str] = (),
    disable: Sequence[str] = (),
    plugins: Sequence[Any] = (),
    progress: Progress | None = None,
) -> Checked:
    """Run all installed checks over a run, or only some of them by name.

    `plugins`: further checks, as objects. `progress`: called with the number of rollouts read so far, and their total.
    """
    dispatcher = Dispatcher(Plugins(plugins).manager, Counters())
    checks = _Feed(dispatcher, _chosen(dispatcher, only, disable))
    checks.start(run)
    done, total = 0, run.count() if progress else 0
    for step, table in generations(run, checks.columns):
        checks.look(table, step)
        done += table.num_rows
        if progress:
            progress(done, total)
    for logged_at, values in _logged(run):
        checks.look_at_log(logged_at, values)
    verdicts = checks.conclude(run)
    if not only and not disable:
        verdicts += _while_training(run, {verdict.check for verdict in verdicts})
    return Checked(distinct(finding for verdict in verdicts for finding in verdict.findings), verdicts)


def _while_training(run: StoredRun, names: Collection[str]) -> Iterator[Verdict]:
    """Yield a verdict for each check that found something during training and is not run now."""
    findings: dict[str, list[Finding]] = {}
    for finding in stored_findings(run):
        if finding.check not in names:
            findings.setdefault(finding.check, []).append(finding)
    for name, found in findings.items():
        yield Verdict(
            check=name, verdict="found", findings=tuple(found), why="found while training, not checked again"
        )


def _chosen(dispatcher: Dispatcher, only: Sequence[str], disable: Sequence[str]) -> list[str]:
    """Return the names of the plugins whose checks are selected, in calling order."""
    names = list(dict.fromkeys(impl.plugin_name for hook in HOOKS for impl in dispatcher.implementations(hook)))
    short = {_short(name): name for name in names}
    for name in (*only, *disable):
        if name not in short and name not in names:
            raise RunError(f"there is no check {name!r}; {suggest(name, short)}")
    wanted = [name for name in names if not only or {name, _short(name)} & set(only)]
    return [name for name in wanted if not {name, _short(name)} & set(disable)]


def _short(plugin_name: str) -> str:
    """Return the name of a check without the prefix of the built-in plugin."""
    return plugin_name.removeprefix("checks.")


class _Feed:
    """The selected checks, their findings so far, and how many rollouts they have received."""

    def __init__(self, dispatcher: Dispatcher, names: Sequence[str]) -> None:
        self._dispatcher = dispatcher
        self._names = names
        self._found: dict[str, list[Finding]] = {name: [] for name in names}
        self._rollouts = 0

    def _implementations(self, hook: str) -> list[Any]:
        return [impl for impl in self._dispatcher.implementations(hook) if impl.plugin_name in self._found]

    @property
    def columns(self) -> list[str]:
        """The columns that the checks read, or all columns if one of them does not declare them."""
        wanted = set(KEYS)
        for impl in self._implementations("check_rollouts"):
            reads = as_sink(impl.plugin).reads
            takes_records = "rollouts" in (*impl.argnames, *impl.kwargnames)
            wanted |= set(SCHEMA.names if reads is None or takes_records else reads)
        return [name for name in SCHEMA.names if name in wanted]

    def start(self, run: StoredRun) -> None:
        for impl in self._implementations("on_run_start"):
            self._dispatcher.call(impl, "on_run_start", {"run": run.info})

    def look(self, table: pa.Table, step: Step) -> None:
        arguments: dict[str, Any] = {"table": table, "step": step}
        implementations = self._implementations("check_rollouts")
        if any("rollouts" in (*impl.argnames, *impl.kwargnames) for impl in implementations):
            arguments["rollouts"] = tuple(from_rows(table.to_pylist()))
        self._rollouts += table.num_rows
        self._call("check_rollouts", arguments)

    def look_at_log(self, step: int, values: Mapping[str, float]) -> None:
        self._call("check_log", {"step": step, "values": values})

    def _call(self, hook: str, arguments: Mapping[str, Any]) -> None:
        for impl in self._implementations(hook):
            _, findings = self._dispatcher.call(impl, hook, arguments, hook_results.findings)
            self._found[impl.plugin_name] += findings or ()

    def conclude(self, run: StoredRun) -> list[Verdict]:
        """Return the verdict of each check; a check that failed is unobserved, never clear."""
        concluding = {impl.plugin_name: impl for impl in self._implementations("check_run")}
        verdicts: list[Verdict] = []
        for name in self._names:
            verdicts += self._verdicts(name, concluding.get(name), run)
        return verdicts

    def _verdicts(self, name: str, impl: Any, run: StoredRun) -> Sequence[Verdict]:
        verdicts: Sequence[Verdict] | None = None
        if name not in self._dispatcher.removed and impl is not None:
            _, verdicts = self._dispatcher.call(impl, "check_run", {"run": run}, hook_results.verdicts)
        verdicts = verdicts or [self._own_verdict(name)]
        failures = self._dispatcher.counters.errors[name]
        return [_with_failures(verdict, failures) for verdict in verdicts] if failures else verdicts

    def _own_verdict(self, name: str) -> Verdict:
        """Return the verdict of a check that gave none."""
        findings = tuple(distinct(self._found[name]))
        outcome: Outcome = "found" if findings else "clear" if self._rollouts else "unobserved"
        why = "" if self._rollouts else "the run has no rollouts"
        return Verdict(check=_short(name), verdict=outcome, rollouts=self._rollouts, findings=findings, why=why)


def _with_failures(verdict: Verdict, failures: int) -> Verdict:
    """Return the verdict of a check that failed: it may have missed something, so it is never clear."""
    why = f"the check failed {count(failures, 'time')}; the log says how"
    return replace(verdict, verdict="found" if verdict.findings else "unobserved", why=why)


def generations(run: StoredRun, columns: Sequence[str]) -> Iterator[tuple[Step, pa.Table]]:
    """Yield each generation of a run as one table, in recording order, without superseded rollouts."""
    waiting: list[pa.Table] = []
    for table in run.batches(list(columns)):
        for piece in _split(table):
            if waiting and _key(waiting[0]) != _key(piece):
                yield _whole(waiting)
                waiting = []
            waiting.append(piece)
    if waiting:
        yield _whole(waiting)


def _key(table: pa.Table) -> tuple[Any, ...]:
    return tuple(table[name][0].as_py() for name in ("split", "attempt", "generation"))


def _split(table: pa.Table) -> Iterator[pa.Table]:
    """Split a table where the generation changes."""
    rows = list(zip(*(table[name].to_pylist() for name in ("split", "attempt", "generation")), strict=True))
    start = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at] != rows[start]:
            yield table.slice(start, at - start)
            start = at


def _whole(tables: Sequence[pa.Table]) -> tuple[Step, pa.Table]:
    table = with_columns(pa.concat_tables(tables), tables[0].column_names).combine_chunks()
    first = {name: table[name][0].as_py() for name in KEYS}
    step = Step(split=first["split"], step=first["step"] or 0, generation=first["generation"], seen=table.num_rows)
    return replace(step, rank=first["rank"] or 0), table


def _logged(run: StoredRun) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the values that the trainer logged, by step."""
    for row in run.sql("from steps").to_pylist():
        step = row.pop("step")
        values = {name: value for name, value in row.items() if isinstance(value, float) and name != "time"}
        if step is not None and values:
            yield step, values


# --- findings that are stored with a run -----------------------------------------------------------------------------


def stored_findings(run: StoredRun) -> list[Finding]:
    """Return the findings stored with a run, the most severe first."""
    findings: list[Finding] = []
    for path in annotation_files(run.dir):
        if path.parent.name == PRODUCER:
            with suppress(Exception):  # an unreadable annotation file is reported as damaged elsewhere
                findings += findings_of(pq.read_schema(open_run_file(path)).metadata)
    return distinct(findings)


def save(run: StoredRun, findings: Sequence[Finding]) -> int:
    """Store the findings that the run does not have yet, and return their number."""
    stored = {(finding.check, finding.title) for finding in stored_findings(run)}
    new = [finding for finding in findings if (finding.check, finding.title) not in stored]
    if new:
        node = nodes_of(run.dir)[0]
        path = write_findings(node, new)
        if is_remote(node):
            remote_reader().send(path)
        run.refresh()
    return len(new)
