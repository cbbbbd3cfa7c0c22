"""Send alerts by your own rules: a rule is about the training or about findings, and has targets for its messages."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Finding, Run, Step, hookimpl

from rollout_plugins.content.findings import evidence_command, is_at_least
from rollout_plugins.plugins.alerts.rules import FindingRule, NumberRule, parse_rule
from rollout_plugins.plugins.alerts.targets import Message, Outgoing, Target, parse_target
from rollout_plugins.system.option_checks import check

logger = logging.getLogger("rollout_plugins")

NAME = "alerts"
#: How long the end of a run waits for undelivered messages.
END_SECONDS = 5.0


class Alerts:
    """Sends a message when a number of the training crosses a bound, or when a check finds something.

    rules: what to look for, and where to send it: one target, or a list of them.
        Alerts({"truncated > 0.3 for 5 steps": "slack:https://hooks.slack.com/services/…"})

    A rule compares one number with `>`, `>=`, `<` or `<=`, and may have to hold `for 5 steps`. Numbers are those of a
    training step: `reward`, `reward_std`, `not_finite`, `no_spread`, `truncated`, `errors`, `empty`, `duplicated`,
    `tokens`, `turns`, `calls`, `failed_calls`. `reward/correct` is the mean of one reward function, `log/loss` is what
    the trainer logs as `loss`, and with `eval/` in front, such as `eval/reward`, a number is that of an evaluation.
    The rule `findings` holds for each new finding that is a warning or severe, `severe findings` for severe ones.

    A target is `webhook:URL`, which gets JSON; `slack:URL`, for Slack and whatever takes its JSON; `command:WORDS`,
    which is run with the title and the text as its last arguments; `trackio` or `wandb`, which show every finding, and
    so need no more than the rule; or a function of a title and a text. `$NAME` in a target is an environment variable,
    so that no secret has to be in the code.

    every: a rule sends at most one message in so many seconds; the next one says how many were held back.
        Alerts({"findings": "command:notify-send"}, every=60)
    """

    name = NAME

    def __init__(self, rules: Mapping[str, Any], *, every: float = 600.0) -> None:
        given = dict(rules) if isinstance(rules, Mapping) else {}
        parsed = [parse_rule(rule) for rule in given]
        targets = [[parse_target(value) for value in _listed(values)] for values in given.values()]
        everything = [*parsed, *(target for several in targets for target in several)]
        is_duration = isinstance(every, (int, float)) and not isinstance(every, bool) and every >= 0
        check(
            NAME,
            None if given else f"rules={rules!r} is not a dict of rules and where to send their messages",
            *(fault for fault in everything if isinstance(fault, str)),
            None if is_duration else f"every={every!r} is not a number of seconds",
        )
        self._targets: dict[str, list[Target]] = {
            rule: [target for target in several if isinstance(target, Target)]
            for rule, several in zip(given, targets, strict=True)
        }
        self._rules = [rule for rule in parsed if isinstance(rule, NumberRule)]
        self._finding_rules = [rule for rule in parsed if isinstance(rule, FindingRule)]
        self._every = every
        self._outgoing = Outgoing()
        self._run = Run(id="")
        self._sent_at: dict[str, float] = {}
        self._held_back: dict[str, int] = {}

    @property
    def reads(self) -> list[str]:
        """The columns that the rules need."""
        return list(dict.fromkeys(["id", *(column for rule in self._rules for column in rule.columns)]))

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Forget the previous run, and warn of a rule about a reward function that this run does not have."""
        self._run = run
        self._sent_at, self._held_back = {}, {}
        for rule in self._rules:
            rule.begin()
            if rule.reward_name and run.reward_names and rule.reward_name not in run.reward_names:
                names = ", ".join(run.reward_names)
                logger.warning("the alert rule %r never holds: the rewards of this run are %s", rule.text, names)

    @hookimpl
    def check_rollouts(self, table: pa.Table, step: Step) -> list[Finding]:
        """Apply the rules about rollouts to one generation. The numbers are those of rank 0."""
        if self._run.rank or not table.num_rows:
            return []
        rules = [rule for rule in self._rules if rule.number is not None and rule.split == step.split]
        return self._apply(((rule, rule.value_of(table)) for rule in rules), step.step)

    @hookimpl
    def check_log(self, step: int, values: Mapping[str, float]) -> list[Finding]:
        """Apply the rules about the trainer's log."""
        rules = [rule for rule in self._rules if rule.log_name in values and not self._run.rank]
        return self._apply(((rule, values[rule.log_name]) for rule in rules), step)

    @hookimpl
    def on_finding(self, finding: Finding) -> None:
        """Send a finding of a check to the targets of the rules about findings."""
        for rule in self._finding_rules:
            if finding.check != NAME and is_at_least(finding, rule.severity):
                self._send(rule.text, finding, evidence_command(finding, self._run.dir))

    @hookimpl
    def on_run_end(self) -> None:
        """Wait briefly for undelivered messages."""
        if not self._outgoing.wait(END_SECONDS):
            logger.warning("some alerts are not delivered yet; they are lost if the process exits before")

    def _apply(self, values: Iterable[tuple[NumberRule, float | None]], step: int) -> list[Finding]:
        """Send the messages of the rules that begin to hold; return a finding for each, which is stored once."""
        findings = []
        for rule, value in values:
            if rule.begins_to_hold(step, value):
                finding = Finding(check=NAME, title=rule.text, text=rule.sentence, steps=tuple(rule.held_steps))
                self._send(rule.text, finding, self._evidence(rule, step))
                findings.append(finding)
        return findings

    def _evidence(self, rule: NumberRule, step: int) -> str:
        """Return the command that shows the rollouts of a rule."""
        if rule.number is None:
            return f"rollouts stats {shlex.quote(self._run.dir)}"
        where = f' --where "{rule.where}"' if rule.where else ""
        return f"rollouts show {shlex.quote(self._run.dir)} --split {rule.split} --step {step}{where}"

    def _send(self, rule: str, finding: Finding, command: str) -> None:
        """Queue one message for each target of a rule, unless the rule has just sent one."""
        moment = time.monotonic()
        if moment - self._sent_at.get(rule, -float("inf")) < self._every:
            self._held_back[rule] = self._held_back.get(rule, 0) + 1
            return
        self._sent_at[rule] = moment
        held_back = self._held_back.pop(rule, 0)
        more = f" ({held_back} more since the last message)" if held_back else ""
        message = Message(
            title=f"{finding.severity}: {finding.title}",
            text=finding.text + more,
            severity=finding.severity,
            command=command,
            check=finding.check,
            steps=list(finding.steps),
            rollouts=list(finding.rollouts),
            run=self._run.id,
            folder=self._run.dir,
        )
        for target in self._targets[rule]:
            self._outgoing.put(target, message)


def _listed(values: Any) -> Sequence[Any]:
    return values if isinstance(values, (list, tuple)) else [values]
