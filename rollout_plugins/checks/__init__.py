"""Checks that look for what goes wrong in a training, and the plugin that brings them.

A check is one class in a file of this folder, and is listed in `BUILT_IN`. While training, each sees every generation
and reports new findings; afterwards, `rollouts check` feeds the same classes from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from rollout_plugins.checks.base import Check
from rollout_plugins.errors import SetupError, suggest

#: The classes of the built-in checks, as "module:Class" below this package, in the order in which they are listed.
BUILT_IN: tuple[str, ...] = (
    "rewards_not_finite:RewardsNotFinite",
    "rewards_missing:RewardsMissing",
    "rewards_constant:RewardsConstant",
    "rewards_scale:RewardsScale",
    "rewards_shifted:RewardsShifted",
    "rewards_ceiling:RewardsCeiling",
    "rewards_diverge:RewardsDiverge",
    "reward_follows_length:RewardFollowsLength",
    "groups_flat:GroupsFlat",
    "groups_mixed:GroupsMixed",
    "train_up_eval_down:TrainUpEvalDown",
    "errors_scored:ErrorsScored",
    "tools_failing:ToolsFailing",
    "tools_unknown:ToolsUnknown",
    "tool_calls_unparsed:ToolCallsUnparsed",
    "tool_calls_repeated:ToolCallsRepeated",
    "tool_results_cut:ToolResultsCut",
    "tool_limit:ToolLimit",
    "answer_twice:AnswerTwice",
    "prompt_double_start:PromptDoubleStart",
    "end_token:EndToken",
    "mask_and_roles:MaskAndRoles",
    "turns_continue:TurnsContinue",
    "lengths_equal:LengthsEqual",
    "sampler_mismatch:SamplerMismatch",
    "reward_hacking:RewardHacking",
    "answers_loop:AnswersLoop",
    "answers_duplicate:AnswersDuplicate",
    "answers_same_opening:AnswersSameOpening",
    "answers_truncated:AnswersTruncated",
    "vocabulary_shrinks:VocabularyShrinks",
    "language_drifts:LanguageDrifts",
    "gibberish:Gibberish",
    "length_runaway:LengthRunaway",
    "thinking_empty:ThinkingEmpty",
    "answer_in_prompt:AnswerInPrompt",
    "eval_in_train:EvalInTrain",
    "prompts_without_signal:PromptsWithoutSignal",
    "rollouts_lost:RolloutsLost",
    "rollouts_untrained:RolloutsUntrained",
    "values_lost:ValuesLost",
)


class Checks:
    """Looks for what goes wrong in the training, and reports each finding once. On by default.

    A finding is a line in the log, an alert in sinks that have alerts (trackio, wandb), and is stored with the run.
    `rollouts check RUN` prints the findings of a stored run.

    only: names of the checks to run; all by default.
        Checks(only=["rewards-not-finite"])
    disable: names of checks that are not to run.
        Checks(disable=["rewards-not-finite"])
    options: options of the check with this name, for checks that have some.
        Checks(options={"rewards-not-finite": {}})
    """

    def __init__(
        self,
        *,
        only: Sequence[str] = (),
        disable: Sequence[str] = (),
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        classes = {kind.name: kind for kind in built_in_checks()}
        for name in (*only, *disable, *(options or {})):
            if name not in classes:
                raise SetupError(f"there is no check {name!r}; {suggest(name, classes)}")
        names = [name for name in classes if (not only or name in only) and name not in disable]
        self.parts: list[Check] = [classes[name](**(options or {}).get(name, {})) for name in names]


def built_in_checks() -> Iterable[type[Check]]:
    """Yield the classes of the built-in checks, in the order of `BUILT_IN`."""
    for address in BUILT_IN:
        module, _, name = address.partition(":")
        yield getattr(import_module(f"{__name__}.{module}"), name)
