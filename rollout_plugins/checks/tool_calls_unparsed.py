"""Text that looks like a tool call, and was not taken for one."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of, text_of
from rollout_plugins.checks.windows import Share

#: How models of the common families begin or end a call.
_MARKERS = (
    b"<tool_call>", b"</tool_call>", b"<function=", b"</function>", b"<function_call>", b"[TOOL_CALLS]",
    b"<|python_tag|>", b"<|tool_call", b"<\xef\xbd\x9ctool", b"```tool_c", b"<tool_use>", b"<invoke ", b'"arguments":',
)  # fmt: skip


class ToolCallsUnparsed(Check):
    """An answer contains what looks like a tool call, but the parser found none in it, so no tool ran.

    The parser expects another format than the chat template teaches, or the model's JSON is slightly wrong. The model
    is then scored as if it had never asked.
    """

    name = "tool-calls-unparsed"
    needs = ("tools",)
    columns = ("completion", "calls")
    advice = "Run the tool parser on one of these answers; compare its format with the chat template's."

    def begin(self) -> None:
        self._share = Share(chances=32, generations=2)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        self.observe(columns.count)
        last = columns.completion.last_answers
        suspects = []
        joined = (b"\n".join(columns.heads), b"\n".join(columns.tails))
        markers = [marker for marker in _MARKERS if any(marker in part for part in joined)]
        if markers:
            has_calls = columns.completion.has_calls
            for row, at in enumerate(last.tolist()):
                if at < 0 or has_calls[at]:
                    continue
                head = columns.heads[row] if columns.completion.first_answers[row] == at else b""
                if any(marker in head or marker in columns.tails[row] for marker in markers):
                    suspects.append(row)
        self._share.add(step, len(suspects), int(columns.calls.sum()) + len(suspects))
        if suspects and self._share.share >= 0.06 and self._share.events >= 6:
            text = columns.tails[suspects[0]]
            place = max(text.find(marker) for marker in markers)
            yield self.finding(
                "tool calls that no parser took",
                f"{self._share.events} of {self._share.chances} calls stayed text, steps {self._share.since} to "
                f"{step}, "
                f"such as {text_of(text[max(place, 0) :])!r}",
                "severe" if self._share.share > 0.5 else "warning",
                steps=(self._share.since, step),
                rollouts=columns.ids(suspects),
                turn=int(last[suspects[0]] - columns.completion.starts[suspects[0]]),
            )
