import io
import json
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from rollout_otel import Otel

from rollout_plugins import ToolCall, Trace
from rollout_plugins.testing import call, hostile_rollouts, make_rollout, make_run, run_plugins, scripted_grpo


def exported(rollouts, run=None, **options):
    exporter = InMemorySpanExporter()
    run_plugins([Otel(exporter, **options)], rollouts, run=run)
    return exporter.get_finished_spans()


def test_a_rollout_is_a_span_with_one_child_for_each_tool_call():
    tool, root = exported([make_rollout()], make_run(model="Qwen/Qwen3-8B"))
    assert (root.name, root.parent) == ("invoke_agent Qwen/Qwen3-8B", None)
    assert (tool.name, tool.parent.span_id) == ("execute_tool multiply", root.context.span_id)
    assert tool.attributes["gen_ai.tool.call.id"] == "call_0_0"
    assert json.loads(tool.attributes["gen_ai.tool.call.arguments"]) == {"a": 6, "b": 7}
    assert json.loads(tool.attributes["gen_ai.tool.call.result"]) == "42"


def test_facts_have_the_names_of_the_conventions():
    (root,) = exported([make_rollout(completion="42", step=3, reward=0.5, advantage=-1.0)])
    facts = root.attributes
    assert facts["gen_ai.operation.name"] == "invoke_agent"
    assert facts["gen_ai.usage.input_tokens"] == 12
    assert facts["gen_ai.usage.output_tokens"] == 20
    assert facts["gen_ai.response.finish_reasons"] == ("stop",)
    assert (facts["rollout.step"], facts["rollout.reward"], facts["rollout.advantage"]) == (3, 0.5, -1.0)
    (event,) = root.events
    assert event.name == "gen_ai.evaluation.result"
    assert dict(event.attributes) == {"gen_ai.evaluation.name": "correct", "gen_ai.evaluation.score.value": 0.5}


def test_messages_are_written_as_parts():
    *_, root = exported([make_rollout()])
    assert json.loads(root.attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "What is 6 times 7?"}]}
    ]
    asked, answered, said = json.loads(root.attributes["gen_ai.output.messages"])
    asking = {"type": "tool_call", "id": "call_0_0", "name": "multiply", "arguments": '{"a": 6, "b": 7}'}
    assert asked == {"role": "assistant", "parts": [asking], "finish_reason": "stop"}
    assert answered["parts"] == [{"type": "tool_call_response", "id": "call_0_0", "response": "42"}]
    assert said["parts"] == [{"type": "text", "content": "It is 42."}]


def test_content_can_stay_at_home():
    rollout = make_rollout(prompt="private one", completion="private two")
    assert any("private" in span.to_json() for span in exported([rollout]))
    assert not any("private" in span.to_json() for span in exported([rollout], content=False))


def test_errors_are_marked():
    failed = replace(make_rollout().tool_calls[0], status="error", error="timeout")
    tool, root = exported([make_rollout(tool_calls=(failed,), error="out of memory", finish="error")])
    assert tool.status.status_code is StatusCode.ERROR
    assert tool.status.description == "timeout"
    assert root.status.status_code is StatusCode.ERROR


def test_tool_calls_stand_end_to_end_inside_the_rollout():
    calls = tuple(ToolCall(name="f", arguments={}, position=i, seconds=0.5) for i in range(2))
    first, second, root = exported([make_rollout(tool_calls=calls, time=1000.0)])
    assert (root.start_time, first.end_time, second.end_time) == (999 * 10**9, 999_500_000_000, 1000 * 10**9)
    assert first.end_time == second.start_time
    assert root.end_time == second.end_time


@pytest.mark.filterwarnings("error")
def test_bears_hostile_rollouts():
    spans = exported(hostile_rollouts())
    assert sum(span.name.startswith("invoke_agent") for span in spans) == len(hostile_rollouts())
    assert all(span.to_json().encode() for span in spans)


def test_bears_a_trace_in_somebody_elses_format():
    exporter = InMemorySpanExporter()
    sink = Otel(exporter)
    sink.export_traces([Trace(rollout_id="1", messages=({"role": "user", "content": {"a": 1}},))], make_rollout())
    sink.on_run_end(make_run())
    assert len(exporter.get_finished_spans()) == 1


def test_without_an_exporter_and_a_provider_it_is_silent():
    run_plugins([Otel()], [make_rollout()])


def test_a_real_training_run_reaches_the_console(tmp_path):
    pytest.importorskip("trl")
    from rollout_plugins import RolloutPluginCallback

    def multiply(a: int, b: int) -> int:
        """Multiply two numbers.

        Args:
            a: first
            b: second
        """
        return a * b

    out = io.StringIO()
    trainer = scripted_grpo(tmp_path, [call("multiply", a=6, b=7)] * 4 + ["It is 42."] * 4, tools=[multiply])
    sink = Otel(ConsoleSpanExporter(out=out, formatter=lambda span: f"{span.name.split()[0]}\n"))
    trainer.add_callback(RolloutPluginCallback([sink], strict=True))
    trainer.train()
    assert sorted(out.getvalue().split()) == ["execute_tool"] * 4 + ["invoke_agent"] * 4
