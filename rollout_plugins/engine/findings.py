"""Run the checks beside a training, and report each of their findings once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Finding, Rollout, Run, Step

from rollout_plugins.content.findings import evidence_command
from rollout_plugins.engine import hook_results
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.error_text import error_text
from rollout_plugins.engine.hook_thread import HookThread
from rollout_plugins.engine.outbound_filter import filter_value
from rollout_plugins.engine.run_warnings import IS_FINDING
from rollout_plugins.store.findings import read_findings, write_findings

logger = logging.getLogger("rollout_plugins")

#: A check may take this much of the time since the run began, and these seconds in any case.
MAX_SHARE, FREE_SECONDS = 0.02, 5.0
_NOT_FILTERED = "a finding that could not be searched for secrets"


class Findings:
    """What the checks of one run found, on the worker thread."""

    def __init__(self, dispatcher: Dispatcher, hooks: HookThread) -> None:
        self.findings: list[Finding] = []
        """What was found since the start of this attempt, in order."""
        self._dispatcher = dispatcher
        self._hooks = hooks
        self._run: Run | None = None
        self._reported: set[tuple[str, str]] = set()
        self._seconds: dict[str, float] = {}
        self._began = time.monotonic()

    def open(self, run: Run) -> None:
        """Start a run, or an attempt of one; what earlier attempts found is not reported again."""
        self._run = run
        self.findings = []
        self._seconds = {}
        self._began = time.monotonic()
        self._reported = set()

    @property
    def is_wanted(self) -> bool:
        """Whether any check looks at generations."""
        return bool(self._dispatcher.implementations("check_rollouts"))

    def look(
        self, batch: pa.RecordBatch, rollouts: Sequence[Rollout], step: Step, alert: Callable[[str, str], object]
    ) -> None:
        """Let every check look at a generation that was stored, and report what is new."""
        arguments: dict[str, Any] = {"table": pa.Table.from_batches([batch]), "step": step}
        implementations = self._dispatcher.implementations("check_rollouts")
        if any("rollouts" in (*impl.argnames, *impl.kwargnames) for impl in implementations):
            arguments["rollouts"] = tuple(rollouts)
        self._call("check_rollouts", implementations, arguments, alert)

    def look_at_log(self, step: int, values: Mapping[str, float | str], alert: Callable[[str, str], object]) -> None:
        """Let every check look at the numbers that the trainer logged at a step, and report what is new."""
        numbers = {name: value for name, value in values.items() if isinstance(value, float)}
        implementations = self._dispatcher.implementations("check_log")
        self._call("check_log", implementations, {"step": step, "values": numbers}, alert)

    def _call(
        self, hook: str, waiting: list[Any], arguments: Mapping[str, Any], alert: Callable[[str, str], object]
    ) -> None:
        found: list[Finding] = []

        def call_all() -> None:
            while waiting:  # after a check hung, the others continue
                found.extend(self._timed(waiting.pop(0), hook, arguments))

        if waiting:
            self._hooks.run(call_all)
        self._report(found, alert)

    def _timed(self, impl: Any, hook: str, arguments: Mapping[str, Any]) -> Iterable[Finding]:
        """Call one check; disable it if it takes too much of the worker's time."""
        started = time.perf_counter()
        _, findings = self._dispatcher.call(impl, hook, arguments, hook_results.findings)
        name = impl.plugin_name
        spent = self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started
        elapsed = time.monotonic() - self._began
        if spent > max(FREE_SECONDS, MAX_SHARE * elapsed):
            reason = f"took {spent:.1f} s of {elapsed:.0f} s, which is more than {MAX_SHARE:.0%}"
            self._dispatcher.remove(name, f"{reason}; `rollouts check` runs it afterwards")
        return findings or ()

    # --- reporting ------------------------------------------------------------------------------------------------

    def _report(self, findings: Sequence[Finding], alert: Callable[[str, str], object]) -> None:
        new = [finding for finding in findings if self._is_new(finding)]
        if not new or self._run is None:
            return
        cleaned: list[Finding] = []
        self._hooks.run(lambda: cleaned.extend(map(self._filtered, new[len(cleaned) :])))
        self.findings += cleaned
        try:
            write_findings(Path(self._run.dir), cleaned)
        except Exception as error:
            logger.warning("findings could not be stored, `rollouts check` finds them again: %s", error_text(error))
        for finding in cleaned:
            level = logging.INFO if finding.severity == "info" else logging.WARNING
            command = _printable(evidence_command(finding, self._run.dir))
            text, title = _printable(finding.text), _printable(finding.title)
            logger.log(level, "%s: %s. See %s", finding.severity, text, command, extra={IS_FINDING: True})
            alert(f"{finding.severity}: {title}", f"{text}\n{command}")
        self._notify(cleaned)

    def _notify(self, findings: Sequence[Finding]) -> None:
        """Tell the plugins that react to findings."""
        implementations = self._dispatcher.implementations("on_finding")
        waiting = [(impl, finding) for finding in findings for impl in implementations]

        def call_all() -> None:
            while waiting:
                impl, finding = waiting.pop(0)
                self._dispatcher.call(impl, "on_finding", {"finding": finding, "run": self._run})

        if waiting:
            self._hooks.run(call_all)

    def _is_new(self, finding: Finding) -> bool:
        """Return whether nobody has reported it, in an earlier attempt or on another rank either."""
        key = (finding.check, finding.title)
        if key in self._reported:
            return False
        if self._run is not None:
            self._reported.update((other.check, other.title) for other in read_findings(Path(self._run.dir)))
        is_new = key not in self._reported
        self._reported.add(key)
        return is_new

    def _filtered(self, finding: Finding) -> Finding:
        """Return the finding as the required plugins allow it, since a check may quote anything."""
        if not self._dispatcher.has_required:
            return finding
        texts = {name: getattr(finding, name) for name in ("check", "title", "text", "advice")}
        hidden = {**texts, "title": _NOT_FILTERED, "text": _NOT_FILTERED, "advice": ""}
        return replace(finding, **filter_value(self._dispatcher, texts, fallback=hidden))


def _printable(text: str) -> str:
    """Return the text without control characters and surrogates, which a model may have written, for a terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
