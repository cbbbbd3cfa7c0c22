"""The hooks that a plugin may implement. A plugin implements any of them, each with only the arguments it needs.

Threads and order: hooks run on one worker thread per process, one at a time, in this order: the plugins passed to the
callback, in their order; then installed plugins by name; then the built-in ones. A sink has a thread of its own for
`export_traces`. An exception costs only the call that raised it, and after three in a row the plugin is disabled for
the rest of the run. Nothing that a hook does reaches training, except that it shares the global random generators.

Hooks are plain functions: a plugin whose hook is `async def`, a wrapper, or has keyword-only arguments is refused when
it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollout_hookspecs._markers import hookspec
from rollout_hookspecs._records import (
    Columns,
    Finding,
    Host,
    Panel,
    Rollout,
    Run,
    Step,
    ToolCall,
    Trace,
    Verdict,
)


@hookspec
def on_run_start(run: Run) -> None:
    """Prepare for a run, or for a resumed attempt of it. Called on every process before the first rollout.

    One plugin object may see several runs. Reset its state here and not in `on_run_end`, because a run that crashed
    may have had no `on_run_end`.

    Example:
        @hookimpl
        def on_run_start(self, run):
            self.folder = Path(run.dir)
    """


@hookspec
def on_tool_call(tool_call: ToolCall, rollout: Rollout, step: Step) -> ToolCall | None:
    """Inspect, replace or drop one tool call. Called for each call of a rollout, before `on_rollout`.

    Return None to leave the call unchanged or a `ToolCall` to replace it, or raise `Drop(reason)` to leave it out of
    `rollout.tool_calls`. This is a chain: each plugin receives the result of the previous one.

    Example:
        @hookimpl
        def on_tool_call(self, tool_call):
            if tool_call.name == "search":
                return replace(tool_call, result="…")
    """


@hookspec
def on_rollout(rollout: Rollout, step: Step) -> Rollout | None:
    """Inspect, replace or drop one rollout. Called for each rollout before it is stored and sent to sinks.

    Return None to leave the rollout unchanged or a `Rollout` to replace it, or raise `Drop(reason)` to discard it;
    discarded rollouts are counted. This is a chain: each plugin receives the result of the previous one.

    Example:
        @hookimpl
        def on_rollout(self, rollout):
            return replace(rollout, extra={**rollout.extra, "judge": self.score(rollout)})
    """


@hookspec
def select_rollouts(rollouts: Sequence[Rollout], step: Step) -> Sequence[Rollout] | None:
    """Select the rollouts of a generation batch that are sent to the sinks. The store has all of them anyway.

    Return None to leave the selection unchanged, or the rollouts to select. To explain why a rollout is selected, add
    a mark: `replace(rollout, marks={**rollout.marks, "mine": "best of its group"})`. Rollouts that are not selected
    are marked automatically. This is a chain: each plugin receives the selection of the previous one.

    Example:
        @hookimpl
        def select_rollouts(self, rollouts):
            return [r for r in rollouts if r.reward is not None]
    """


@hookspec(firstresult=True)
def format_trace(rollout: Rollout) -> Trace | None:
    """Convert a rollout into the `Trace` that sinks receive. The first plugin that returns one wins.

    Return None to leave the rollout to the next plugin; the built-in format is the last.

    Example:
        @hookimpl
        def format_trace(self, rollout):
            return Trace(rollout_id=rollout.id, messages=rollout.completion)
    """


@hookspec
def export_traces(traces: Sequence[Trace], step: Step) -> Sequence[str] | None:
    """Send the selected traces of one generation batch to a destination. A plugin with this hook is a sink.

    It is called on the sink's own thread, behind a bounded queue, so it may be slow, block or raise without affecting
    training, the store or another sink. Traces that it fails to send are counted, and can be exported from the store
    later. Return None if all traces arrived, or the `rollout_id`s of those that did.

    Example:
        @hookimpl
        def export_traces(self, traces, step):
            self.client.send([t.messages for t in traces])
    """


@hookspec
def rollout_metrics(rollouts: Sequence[Rollout], step: Step, columns: Columns) -> Mapping[str, float] | None:
    """Compute metrics of one generation batch of this process; the trainer logs each as `rollouts/<name>`.

    `columns` has the same rollouts field by field: `columns["reward"]` is the list of their rewards. If no plugin
    takes `rollouts`, no `Rollout` objects are created, which saves most of the time.

    Example:
        @hookimpl
        def rollout_metrics(self, rollouts):
            return {"turns": mean(len(r.completion) for r in rollouts)}
    """


@hookspec
def check_rollouts(rollouts: Sequence[Rollout], step: Step, table: Any) -> Sequence[Finding] | None:
    """Look for something wrong in one generation batch of this process, after it was stored. Return new findings.

    `table` is a `pyarrow.Table` with the columns of the store; prefer it, since `rollouts` has to be built from it.
    Called while training, and again for each generation of a stored run by `rollouts check`. A finding is logged,
    stored with the run, and sent to the sinks that have alerts, once in a run for each `check` and `title`.

    Example:
        @hookimpl
        def check_rollouts(self, table):
            if not any(table["completion_tokens"].to_pylist()):
                return [Finding(check="empty", title="empty answers", text="all answers of a step are empty")]
    """


@hookspec
def check_log(step: int, values: Mapping[str, float]) -> Sequence[Finding] | None:
    """Look for something wrong in what the trainer logged at a step, such as loss and grad_norm. Return new findings.

    Called in the same places as `check_rollouts`; numbers only.

    Example:
        @hookimpl
        def check_log(self, step, values):
            if values.get("grad_norm", 0) > 1000:
                return [Finding(check="norm", title="huge gradient", text=f"grad_norm > 1000 at step {step}")]
    """


@hookspec
def on_finding(finding: Finding, run: Run) -> None:
    """React to a new finding of a check while training: post it, page somebody. Called once for each finding.

    Example:
        @hookimpl
        def on_finding(self, finding):
            self.chat.post(f"{finding.severity}: {finding.text}")
    """


@hookspec
def check_run(run: Any) -> Verdict | Sequence[Verdict] | None:
    """Conclude what is wrong with a stored run, after `check_rollouts` and `check_log` saw all of it.

    `run` is what `open_run` returns. Called by `rollouts check` and `StoredRun.check`, never in training. A check that
    had nothing to read returns the verdict `unobserved` and says why.

    Example:
        @hookimpl
        def check_run(self, run):
            return Verdict(check="size", verdict="clear" if len(run) > 1000 else "unobserved", rollouts=len(run))
    """


@hookspec
def register_hosts() -> Sequence[Host] | None:
    """Return `Host` adapters for trainers that this library does not support. Called when the callback attaches.

    Example:
        @hookimpl
        def register_hosts(self):
            return [MyTrainerHost()]
    """


@hookspec
def show_rollout(rollout: Rollout, run: Run) -> Sequence[Panel] | None:
    """Return panels that show a stored rollout besides its messages: a board, a plot, a table.

    Called by `rollouts view` and `rollouts report`, never during training. Return None if there is nothing to show,
    for example for a rollout of another environment.

    Example:
        @hookimpl
        def show_rollout(self, rollout):
            moves = [call for call in rollout.tool_calls if call.name == "move"]
            return [Panel(title="board", text=str(call.result), turn=call.turn) for call in moves]
    """


@hookspec
def on_run_end(run: Run) -> None:
    """Flush and close what the plugin opened for the run. Also called when training crashes.

    It may be called more than once.

    Example:
        @hookimpl
        def on_run_end(self, run):
            self.client.close()
    """


@hookspec
def on_run_stored(run: Run, seconds: float) -> None:
    """Copy, upload or check the files of the run, which this process has finished writing.

    This is the last hook of a run, or of an attempt of it, and comes after `on_run_end`. The process waits at most
    `seconds` for it. A plugin that needs longer should log what is missing and return.

    Example:
        @hookimpl
        def on_run_stored(self, run, seconds):
            shutil.make_archive(run.dir, "zip", run.dir)
    """
