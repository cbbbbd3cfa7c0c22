"""Cut conversations so that a trainer without a mask trains on nothing that a tool or an environment wrote.

TRL's DPO and KTO trainers train on every token after the prompt. So the turns that two answers share become part of
the prompt, and the answer is what the model wrote at the first turn that differs, up to the next message of a tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from rollout_plugins.learn.stored_messages import Conversation

MODEL = "assistant"
_ID = 'id":'  # of "id" and of "tool_call_id"
_NO_ANSWER = "without an answer of the model"
_SAME_TEXT = "with the same text on both sides"
_PREFIX = "where one answer is the beginning of the other"
_TOOLS_DIFFER = "where the model wrote the same and a tool answered differently"


class CannotCutError(Exception):
    """The answers have no turn to train on; the message says why, after the number of rollouts."""


class Cut(NamedTuple):
    """A prompt, with the turns that were moved into it, and the answers to train on."""

    prompt: Conversation
    answers: tuple[Conversation, ...]


def cut_pair(prompt: Conversation, winner: Conversation, loser: Conversation, *, whole: bool) -> Cut:
    """Cut the completions of a pair at the first turn that differs; with `whole`, only check that they differ."""
    if not winner.texts or not loser.texts:
        raise CannotCutError(_NO_ANSWER)
    shared = count_shared(winner, loser)
    if shared == len(winner) == len(loser):
        raise CannotCutError(_SAME_TEXT)
    if whole:
        return Cut(prompt, (winner, loser))
    if shared in (len(winner), len(loser)):
        raise CannotCutError(_PREFIX)
    if winner.roles[shared] != MODEL or loser.roles[shared] != MODEL:
        raise CannotCutError(_TOOLS_DIFFER)
    return Cut(prompt + winner.cut(0, shared), (_model_turns(winner, shared), _model_turns(loser, shared)))


def cut_answer(prompt: Conversation, answer: Conversation, rivals: Sequence[Conversation], *, whole: bool) -> Cut:
    """Cut a labelled completion at the first turn where it differs from all siblings with the other label."""
    if not answer.texts:
        raise CannotCutError(_NO_ANSWER)
    shared = max((count_shared(answer, rival) for rival in rivals), default=0)
    if whole:
        if any(count_shared(answer, rival) == len(answer) == len(rival) for rival in rivals):
            raise CannotCutError(_SAME_TEXT)
        return Cut(prompt, (answer,))
    if shared == len(answer):
        raise CannotCutError(_PREFIX)
    if answer.roles[shared] != MODEL:
        raise CannotCutError(_TOOLS_DIFFER)
    return Cut(prompt + answer.cut(0, shared), (_model_turns(answer, shared),))


def count_shared(first: Conversation, second: Conversation) -> int:
    """Return how many messages two conversations have in common from their start; ids of calls do not count."""
    for place, (a, b) in enumerate(zip(first.texts, second.texts, strict=False)):
        if a != b and not (_ID in a and _ID in b and _without_ids(a) == _without_ids(b)):
            return place
    return min(len(first), len(second))


def _without_ids(text: str) -> Any:
    """Return a message without ids of tool calls, which differ each time although nothing else does."""
    message = orjson.loads(text)
    if isinstance(message, dict):
        message.pop("tool_call_id", None)
        for call in message.get("tool_calls") or ():
            if isinstance(call, dict):
                call.pop("id", None)
    return message


def _model_turns(conversation: Conversation, start: int) -> Conversation:
    """Return the model's messages from `start` to the next message that somebody else wrote."""
    end = next((n for n in range(start, len(conversation)) if conversation.roles[n] != MODEL), len(conversation))
    return conversation.cut(start, end)
