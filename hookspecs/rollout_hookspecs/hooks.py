"""The hooks. Implement any of them; take only the arguments you need.

Threads and order: hooks run on one worker thread per process, one at a time: the user's list first, in its order,
then discovered plugins by name, then built-in ones. `export_traces` alone runs on a thread of each plugin's own.
An exception costs that call only; after three in a row the plugin is taken out. Nothing here can reach training.

Hooks are plain functions: `async def`, wrappers and keyword-only arguments are refused when the plugin is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollout_hookspecs._markers import hookspec
from rollout_hookspecs._records import Columns, Host, Panel, Rollout, Run, Step, ToolCall, Trace


@hookspec
def on_run_start(run: Run) -> None:
    """A run (or a resumed attempt of it) begins; called before its first rollout, on every process.

    One plugin object may see several runs: forget here what you know of the run before, which may have broken off
    without an `on_run_end`.

    Example:
        @hookimpl
        def on_run_start(self, run):
            self.folder = Path(run.dir)
    """


@hookspec
def on_tool_call(tool_call: ToolCall, rollout: Rollout, step: Step) -> ToolCall | None:
    """Each tool call of each rollout, before `on_rollout`. A chain: each plugin sees the previous one's result.

    Return None to keep it, a `ToolCall` to replace it, or raise `Drop(reason)` to leave it out of the record.

    Example:
        @hookimpl
        def on_tool_call(self, tool_call):
            if tool_call.name == "search":
                return replace(tool_call, result="…")
    """


@hookspec
def on_rollout(rollout: Rollout, step: Step) -> Rollout | None:
    """Each rollout, before the store and the sinks. A chain: each plugin sees the previous one's result.

    Return None to keep it, a `Rollout` to replace it, or raise `Drop(reason)` to discard it; discards are counted.

    Example:
        @hookimpl
        def on_rollout(self, rollout):
            return replace(rollout, extra={**rollout.extra, "judge": self.score(rollout)})
    """


@hookspec
def select_rollouts(rollouts: Sequence[Rollout], step: Step) -> Sequence[Rollout] | None:
    """Which rollouts of the generation batch go to the sinks. A chain. The store keeps all of them anyway.

    Return None to keep the selection, or the rollouts to go on with. Say why with `marks`:
    `replace(rollout, marks={**rollout.marks, "mine": "best of its group"})`; what you leave out is marked for you.

    Example:
        @hookimpl
        def select_rollouts(self, rollouts):
            return [r for r in rollouts if r.reward is not None]
    """


@hookspec(firstresult=True)
def format_trace(rollout: Rollout) -> Trace | None:
    """How a rollout looks in the sinks. The first plugin that returns a `Trace` wins; the built-in one is last.

    Example:
        @hookimpl
        def format_trace(self, rollout):
            return Trace(rollout_id=rollout.id, messages=rollout.completion)
    """


@hookspec
def export_traces(traces: Sequence[Trace], step: Step) -> Sequence[str] | None:
    """Sinks: send the selected traces of one generation batch somewhere.

    Called on a thread of the plugin's own, behind a bounded queue: it may be slow, block or raise without touching
    training, the store or another sink. What it misses is counted and can be exported from the store later.
    Returns nothing when everything arrived, or the `rollout_id`s of the traces that did.

    Example:
        @hookimpl
        def export_traces(self, traces, step):
            self.client.send([t.messages for t in traces])
    """


@hookspec
def rollout_metrics(rollouts: Sequence[Rollout], step: Step, columns: Columns) -> Mapping[str, float] | None:
    """Numbers about one generation batch of this process; they join the trainer's own log as `rollouts/<name>`.

    `columns["reward"]` has the rewards of all, and so on for each field. Where no plugin asks for rollouts, none is
    made of what was recorded, which saves most of the time.

    Example:
        @hookimpl
        def rollout_metrics(self, rollouts):
            return {"turns": mean(len(r.completion) for r in rollouts)}
    """


@hookspec
def register_hosts() -> Sequence[Host] | None:
    """More `Host` adapters, for trainers this library does not know. Asked when the callback finds its trainer.

    Example:
        @hookimpl
        def register_hosts(self):
            return [MyTrainerHost()]
    """


@hookspec
def show_rollout(rollout: Rollout, run: Run) -> Sequence[Panel] | None:
    """What the viewer and the report show of a stored rollout besides its turns: a board, a plot, a table.

    Called by `rollouts view` and `rollouts report`, never in training. Return None for rollouts of other environments.

    Example:
        @hookimpl
        def show_rollout(self, rollout):
            moves = [call for call in rollout.tool_calls if call.name == "move"]
            return [Panel(title="board", text=str(call.result), turn=call.turn) for call in moves]
    """


@hookspec
def on_run_end(run: Run) -> None:
    """The run ends: flush and close. May be called more than once; also called when training dies.

    Example:
        @hookimpl
        def on_run_end(self, run):
            self.client.close()
    """


@hookspec
def on_run_stored(run: Run, seconds: float) -> None:
    """Nothing more is written to the run's folder by this process: copy it, upload it, check it.

    After `on_run_end`, and the last thing that happens to a run or an attempt of it. The process waits that many
    seconds at most; whoever is not done by then says so and comes back.

    Example:
        @hookimpl
        def on_run_stored(self, run, seconds):
            shutil.make_archive(run.dir, "zip", run.dir)
    """
