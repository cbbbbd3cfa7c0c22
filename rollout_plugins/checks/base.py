"""The base class of checks that look at one generation after the other, while training and afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from rollout_hookspecs import Finding, Outcome, Run, Severity, Step, Verdict, hookimpl

from rollout_plugins.checks.shared import share

#: What a check may need, and what is missing when a run does not have it.
NEEDS: Mapping[str, str] = {
    "tokens": "needs tokens=True",
    "logprobs": "needs tokens=True and the sampler's log-probabilities",
    "trainer_logprobs": "needs tokens=True and the trainer's log-probabilities",
    "rewards": "needs rewards",
    "several_rewards": "needs two or more reward functions",
    "tools": "needs tools",
    "groups": "needs groups of two or more rollouts",
    "evaluation": "needs an evaluation",
    "log": "needs the trainer's log",
}
#: Columns that every check gets.
KEYS = ("id", "split", "step", "attempt", "generation", "rank", "index", "group", "group_size", "reward", "advantage")
#: Columns by which a generation is seen to have what a check needs.
_COLUMN_OF_NEED = {
    "tokens": "tokens",
    "logprobs": "tokens",
    "trainer_logprobs": "tokens",
    "rewards": "rewards",
    "several_rewards": "rewards",
    "tools": "calls",
}
#: Needs that are not met by a single generation, and so do not keep `look` from being called.
_OF_THE_RUN = frozenset({"evaluation", "log"})


class Check:
    """One thing that may be wrong with a training, looked for in each generation in the order they were made.

    Subclasses set `name`, `needs` and `columns`, and implement `look`, `look_at_log` or both. The same object is used
    while training and afterwards; it forgets everything in `begin`.
    """

    name: ClassVar[str] = ""
    """What people call the check: lower-case words joined by hyphens."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Keys of `NEEDS`. `look` is only called for generations that have what the check needs."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Columns of the store that `look` reads, besides `KEYS`."""
    advice: ClassVar[str] = ""
    """What to do about a finding, unless it has advice of its own."""

    why = ""
    """Set by a check that looked at nothing although its needs were met: the reason in a few words."""
    run: Run = Run(id="")
    """Facts of the run: its tools, reward functions and settings."""

    observed_rollouts = 0
    observed_tokens = 0

    # --- what subclasses implement --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget the previous run. `self.run` is the new one."""

    def look(self, table: pa.Table, step: int, split: str) -> Iterable[Finding]:
        """Look at one generation, and return what is found for the first time."""
        return ()

    def look_at_log(self, step: int, values: Mapping[str, float]) -> Iterable[Finding]:
        """Look at what the trainer logged at a step, and return what is found for the first time."""
        return ()

    def finish(self) -> Iterable[Finding]:
        """Return what can be found only when all of a stored run was seen. Not called while training."""
        return ()

    # --- what subclasses use --------------------------------------------------------------------------------------

    def observe(self, rollouts: int, tokens: int = 0) -> None:
        """Count what the check has looked at. A check that never calls this is `unobserved`, never `clear`."""
        self.observed_rollouts += rollouts
        self.observed_tokens += tokens

    def finding(self, title: str, text: str, severity: Severity = "warning", **details: Any) -> Finding:
        """Return a finding of this check, with its advice."""
        return Finding(
            check=self.name, title=title, text=text, severity=severity, **{"advice": self.advice, **details}
        )

    @cached_property
    def reads(self) -> list[str]:
        """The columns that the check gets."""
        columns_of_needs = (_COLUMN_OF_NEED[need] for need in self.needs if need in _COLUMN_OF_NEED)
        return list(dict.fromkeys((*KEYS, *self.columns, *columns_of_needs)))

    # --- the hooks --------------------------------------------------------------------------------------------------

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Begin anew: the check knows nothing of the run before."""
        self.run = run
        self.why = ""
        self.observed_rollouts = self.observed_tokens = 0
        self._findings: dict[str, Finding] = {}
        self._met: set[str] = set()
        self.begin()

    @hookimpl
    def check_rollouts(self, table: pa.Table, step: Step) -> list[Finding]:
        if step.split == "eval":
            self._met.add("evaluation")
        if not table.num_rows:
            return []
        share(table)
        missing = {need for need in self.needs if need not in _OF_THE_RUN and not has(table, need, self.run)}
        self._met.update(set(self.needs) - _OF_THE_RUN - missing)
        return [] if missing else list(self._new(self.look(table.select(self.reads), step.step, step.split)))

    @hookimpl
    def check_log(self, step: int, values: Mapping[str, float]) -> list[Finding]:
        if values:
            self._met.add("log")
        return list(self._new(self.look_at_log(step, values)))

    @hookimpl
    def check_run(self) -> Verdict:
        list(self._new(self.finish()))
        return self.verdict()

    def _new(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """Yield findings whose title is new."""
        for finding in findings:
            if finding.title not in self._findings:
                self._findings[finding.title] = finding
                yield finding

    def verdict(self) -> Verdict:
        """Return what the check concludes from all that it has looked at so far."""
        verdict: Outcome = "found" if self._findings else "clear" if self._has_observed else "unobserved"
        why = ""
        if verdict == "unobserved":
            missing = [NEEDS[need] for need in self.needs if need not in self._met]
            why = "; ".join(missing) or self.why or "there was nothing to look at"
        return Verdict(
            check=self.name,
            verdict=verdict,
            rollouts=self.observed_rollouts,
            tokens=self.observed_tokens,
            why=why,
            findings=tuple(self._findings.values()),
        )

    @property
    def _has_observed(self) -> bool:
        return self.observed_rollouts > 0 or self.observed_tokens > 0


def has(table: pa.Table, need: str, run: Run) -> bool:
    """Return whether a generation has what a check needs. An evaluation and the log are not part of a generation."""
    facts, fact = share(table).facts, (need, bool(run.tools))
    if fact not in facts:
        facts[fact] = _has(table, need, run)
    return facts[fact]


def _has(table: pa.Table, need: str, run: Run) -> bool:
    if need == "tokens":
        return bool(table["tokens"].null_count < table.num_rows)
    if need in {"logprobs", "trainer_logprobs"}:
        return any(_has_values(chunk, need) for chunk in table["tokens"].chunks)
    if need in {"rewards", "several_rewards"}:
        most = pc.max(pc.list_value_length(table["rewards"])).as_py() or 0
        return bool(most >= (1 if need == "rewards" else 2))
    if need == "tools":
        return bool(run.tools) or bool(pc.any(pc.greater(table["calls"], 0)).as_py())
    if need == "groups":
        return bool(pc.any(pc.greater(table["group_size"], 1)).as_py())
    return True


def _has_values(tokens: pa.StructArray, name: str) -> bool:
    """Return whether any rollout has this list. A null struct hides the lists below it, so `flatten` is needed."""
    return bool(pc.struct_field(tokens, name).null_count < len(tokens))
