"""A small working example for each hook, with its test. `KIND` and `NAME` become the plugin's class and name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Snippet:
    """The code that one hook adds to the new plugin's module and to its tests."""

    method: str
    """The method of the plugin's class."""
    test: str
    """The code for the test module."""
    ours: str
    """The names that the method needs from `rollout_plugins`."""
    standard: tuple[str, ...] = ()
    """The import lines that the method needs from the standard library."""
    before: str = ""
    """Code above the class."""
    test_ours: str = ""
    """The names that the test needs from `rollout_plugins`."""
    test_kit: str = "make_rollout run_plugins"
    """The names that the test needs from `rollout_plugins.testing`."""


_ABC = "from collections.abc import "

SNIPPETS = {
    "on_run_start": Snippet(
        ours="Run",
        method="""\
    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self.model = run.model
""",
        test_kit="make_run run_plugins",
        test="""\
def test_knows_the_model_before_the_first_rollout() -> None:
    plugin = KIND()
    run_plugins([plugin], [], run=make_run(model="Qwen/Qwen3-8B"))
    assert plugin.model == "Qwen/Qwen3-8B"
""",
    ),
    "on_tool_call": Snippet(
        ours="ToolCall",
        standard=("from dataclasses import replace",),
        method="""\
    @hookimpl
    def on_tool_call(self, tool_call: ToolCall) -> ToolCall | None:
        if tool_call.error is None:
            return None
        return replace(tool_call, error=tool_call.error[:200])
""",
        test_ours="ToolCall",
        test="""\
def test_shortens_the_errors_of_tools() -> None:
    failed = ToolCall(name="search", arguments={}, status="error", error="x" * 999)
    result = run_plugins([KIND()], [make_rollout(tool_calls=(failed,))])
    assert result.rollouts[0].tool_calls[0].error == "x" * 200
""",
    ),
    "on_rollout": Snippet(
        ours="Rollout",
        standard=("from dataclasses import replace",),
        method="""\
    @hookimpl
    def on_rollout(self, rollout: Rollout) -> Rollout:
        roles = [message.get("role") for message in rollout.completion if isinstance(message, dict)]
        return replace(rollout, extra={**rollout.extra, "NAME/turns": roles.count("assistant")})
""",
        test="""\
def test_counts_the_turns_of_a_rollout() -> None:
    result = run_plugins([KIND()], [make_rollout(completion="one turn"), make_rollout()])
    assert [rollout.extra["NAME/turns"] for rollout in result.rollouts] == [1, 2]
""",
    ),
    "select_rollouts": Snippet(
        ours="Rollout",
        standard=(f"{_ABC}Sequence",),
        method="""\
    @hookimpl
    def select_rollouts(self, rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
        return [rollout for rollout in rollouts if rollout.finish != "length"]
""",
        test="""\
def test_leaves_out_what_was_cut_off() -> None:
    result = run_plugins([KIND()], [make_rollout(finish="length"), make_rollout(finish="stop")])
    assert result.selected == result.rollouts[1:]
    assert list(result.skipped) == [result.rollouts[0].id]
""",
    ),
    "format_trace": Snippet(
        ours="Rollout Trace",
        method="""\
    @hookimpl
    def format_trace(self, rollout: Rollout) -> Trace:
        messages = [message for message in rollout.completion if isinstance(message, dict)]
        return Trace(rollout_id=rollout.id, messages=tuple(messages), metadata={"reward": rollout.reward})
""",
        test="""\
def test_shows_the_answer_alone() -> None:
    result = run_plugins([KIND()], [make_rollout(completion="42", reward=1.0)])
    assert result.traces[0].messages == ({"role": "assistant", "content": "42"},)
    assert result.traces[0].metadata == {"reward": 1.0}
""",
    ),
    "export_traces": Snippet(
        ours="Step Trace",
        standard=(f"{_ABC}Sequence",),
        method="""\
    def __init__(self) -> None:
        self.sent: list[str] = []

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> None:
        self.sent += [f"{step.step}: {trace.rollout_id}" for trace in traces]
""",
        test="""\
def test_sends_every_trace() -> None:
    plugin = KIND()
    result = run_plugins([plugin], [make_rollout(step=3), make_rollout(step=3)])
    assert plugin.sent == [f"3: {rollout.id}" for rollout in result.selected]
""",
    ),
    "rollout_metrics": Snippet(
        ours="Rollout",
        standard=(f"{_ABC}Mapping", f"{_ABC}Sequence"),
        method="""\
    @hookimpl
    def rollout_metrics(self, rollouts: Sequence[Rollout]) -> Mapping[str, float] | None:
        if not rollouts:
            return None
        return {"NAME/calls": sum(len(rollout.tool_calls) for rollout in rollouts) / len(rollouts)}
""",
        test="""\
def test_reports_the_mean_number_of_calls() -> None:
    result = run_plugins([KIND()], [make_rollout(), make_rollout(tool_calls=())])
    assert result.metrics == {"rollouts/NAME/calls": 0.5}
""",
    ),
    "check_rollouts": Snippet(
        ours="Finding",
        standard=(f"{_ABC}Sequence", "from typing import Any"),
        method="""\
    @hookimpl
    def check_rollouts(self, table: Any) -> Sequence[Finding]:
        if any(table["completion_tokens"].to_pylist()):
            return []
        return [Finding(check="NAME", title="empty answers", text="all answers of a step are empty")]
""",
        test="""\
def test_finds_steps_of_empty_answers_once() -> None:
    empty = [make_rollout(step=step, completion_tokens=0) for step in (1, 2)]
    (finding,) = run_plugins([KIND()], empty).findings
    assert finding.title == "empty answers"
    assert run_plugins([KIND()], [make_rollout(completion_tokens=9)]).findings == []
""",
    ),
    "check_log": Snippet(
        ours="Finding",
        standard=(f"{_ABC}Mapping", f"{_ABC}Sequence"),
        method="""\
    @hookimpl
    def check_log(self, step: int, values: Mapping[str, float]) -> Sequence[Finding]:
        if values.get("grad_norm", 0) < 1000:
            return []
        return [Finding(check="NAME", title="huge gradient", text=f"grad_norm is above 1000 at step {step}")]
""",
        test_kit="run_plugins",
        test="""\
def test_finds_huge_gradients() -> None:
    assert len(KIND().check_log(3, {"grad_norm": 2000.0})) == 1
    assert KIND().check_log(3, {"grad_norm": 1.0, "loss": 0.1}) == []
""",
    ),
    "on_finding": Snippet(
        ours="Finding",
        method="""\
    @hookimpl
    def on_finding(self, finding: Finding) -> None:
        self.newest = finding.text
""",
        test_ours="Finding",
        test_kit="run_plugins",
        test="""\
def test_keeps_the_newest_finding() -> None:
    plugin = KIND()
    plugin.on_finding(Finding(check="mine", title="odd", text="something is odd"))
    assert plugin.newest == "something is odd"
""",
    ),
    "check_run": Snippet(
        ours="Verdict StoredRun",
        method="""\
    @hookimpl
    def check_run(self, run: StoredRun) -> Verdict:
        if not len(run):
            return Verdict(check="NAME", verdict="unobserved", why="the run has no rollouts")
        return Verdict(check="NAME", verdict="clear", rollouts=len(run))
""",
        test="""\
def test_gives_a_verdict_on_a_stored_run(tmp_path: Path) -> None:
    run_plugins([], [make_rollout() for _ in range(3)], dir=tmp_path)
    verdicts = open_run(tmp_path).check(plugins=[KIND()]).verdicts
    (verdict,) = [verdict for verdict in verdicts if verdict.check == "NAME"]
    assert (verdict.verdict, verdict.rollouts) == ("clear", 3)
""",
    ),
    "register_hosts": Snippet(
        ours="Batch Emit Host Rollout",
        standard=(f"{_ABC}Callable", f"{_ABC}Mapping", f"{_ABC}Sequence", "from typing import Any"),
        before='''\
class KINDHost:
    """Observes a trainer with a method `generate(prompts)` that returns texts. Change it to what yours has."""

    name = "NAME"

    def matches(self, trainer: Any) -> bool:
        return type(trainer).__name__ == "KINDTrainer"

    def attach(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> Callable[[], None]:
        original = trainer.generate

        def generate(prompts: Sequence[str]) -> Sequence[str]:
            texts: Sequence[str] = original(prompts)
            pairs = list(zip(prompts, texts, strict=True))
            emit(Batch(build=lambda: [_rollout(i, *pair) for i, pair in enumerate(pairs)], count=len(pairs)))
            return texts

        trainer.generate = generate
        return lambda: setattr(trainer, "generate", original)

    def describe(self, trainer: Any) -> Mapping[str, Any]:
        return {"trainer": type(trainer).__name__}


def _rollout(index: int, prompt: str, text: str) -> Rollout:
    asked = {"role": "user", "content": prompt}
    said = {"role": "assistant", "content": text}
    return Rollout(id="", index=index, prompt=(asked,), completion=(said,))


''',
        method="""\
    @hookimpl
    def register_hosts(self) -> Sequence[Host]:
        return [KINDHost()]
""",
        test_ours="Batch",
        test_kit="run_plugins",
        test="""\
class KINDTrainer:
    def generate(self, prompts: list[str]) -> list[str]:
        return [prompt.upper() for prompt in prompts]


class Seen:
    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def __call__(self, batch: Batch) -> None:
        self.batches.append(batch)

    def lost(self, reason: str, count: int) -> None:
        raise AssertionError(reason)

    def untrained(self, reason: str, count: int, step: int | None = None) -> None:
        raise AssertionError(reason)

    def waits(self, count: int, emit_pending: object) -> None:
        raise AssertionError(emit_pending)


def test_the_host_sees_what_its_trainer_generates() -> None:
    trainer, seen = KINDTrainer(), Seen()
    (host,) = KIND().register_hosts()
    assert host.matches(trainer)
    detach = host.attach(trainer, seen, {})
    assert trainer.generate(["hello"]) == ["HELLO"]
    detach()
    assert trainer.generate(["unseen"]) == ["UNSEEN"]
    (batch,) = seen.batches
    (rollout,) = batch.build()
    assert rollout.completion == ({"role": "assistant", "content": "HELLO"},)
""",
    ),
    "show_rollout": Snippet(
        ours="Panel Rollout",
        standard=(f"{_ABC}Sequence",),
        method="""\
    @hookimpl
    def show_rollout(self, rollout: Rollout) -> Sequence[Panel]:
        rows = [("tool", "outcome")] + [(call.name, call.status) for call in rollout.tool_calls]
        return [Panel(title="NAME", table=rows)] if rollout.tool_calls else []
""",
        test_kit="make_rollout show_panels",
        test="""\
def test_shows_a_table_of_calls_where_there_are_some() -> None:
    (panel,) = show_panels([KIND()], make_rollout())
    assert panel.table[1:] == (("multiply", "ok"),)
    assert show_panels([KIND()], make_rollout(tool_calls=())) == ()
""",
    ),
    "on_run_end": Snippet(
        ours="Run",
        method="""\
    @hookimpl
    def on_run_end(self, run: Run) -> None:
        self.ended = run.id
""",
        test_kit="make_run run_plugins",
        test="""\
def test_hears_of_the_end() -> None:
    plugin = KIND()
    run_plugins([plugin], [], run=make_run(id="mine"))
    assert plugin.ended == "mine"
""",
    ),
    "on_run_stored": Snippet(
        ours="Run",
        method="""\
    @hookimpl
    def on_run_stored(self, run: Run, seconds: float) -> None:
        self.stored = run.id
""",
        test_kit="make_run",
        test="""\
def test_hears_when_the_files_are_complete() -> None:
    plugin = KIND()
    plugin.on_run_stored(make_run(id="mine"), seconds=1.0)
    assert plugin.stored == "mine"
""",
    ),
}
