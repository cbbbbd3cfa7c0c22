"""What ms-swift asks its engine, turn by turn, and what it answers, until the samples are whole and scored.

A scheduler runs between two turns. Where it raises, the samples never become whole: this is what there is of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout_plugins.hosts.kit.observe_generation import Observer
from rollout_plugins.hosts.kit.observed_generation import Generation
from rollout_plugins.hosts.kit.support import TRLHost
from rollout_plugins.hosts.kit.wrapping import Call


@dataclass(slots=True, eq=False)
class Request:
    """One sample, with the answers to it so far."""

    sample: Any
    generation: Generation
    messages: list[Any]
    """The trainer's own list, which its scheduler goes on with."""
    choices: list[Any] = field(default_factory=list)
    is_whole: bool = False
    """Whether the messages hold the last answer, too."""

    def as_sample(self) -> Any:
        """Return the sample as it would be if the trainer had finished it already."""
        sample, last = copy.copy(self.sample), self.choices[-1]
        answer = {"role": "assistant", "content": last.message.content}
        sample.messages = [*self.messages, *([] if self.is_whole else [answer])]
        sample.response_token_ids = [list(choice.token_ids or ()) for choice in self.choices]
        sample.response_loss_mask = []
        logprobs = [_logprobs(choice) for choice in self.choices]
        sample.rollout_logprobs = logprobs if all(logprobs) else []
        sample.finish_reason = last.finish_reason
        return sample


class Requests:
    """The requests that are not scored yet, by the ids that ms-swift gives them."""

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}
        self.prompt_sizes: dict[str, int] = {}
        """How many messages each was asked with at first."""

    def ask(self, samples: Sequence[Any], generation: Generation) -> None:
        """Record the requests of this turn: samples in the first turn, requests with the same ids in later ones."""
        for one in samples:
            key = _key(one)
            if key in self._requests:
                self._requests[key].messages = one.messages
            elif hasattr(one, "request_id"):  # a request of the scheduler's own making belongs to no sample
                self._requests[key] = Request(one, generation, one.messages)
                self.prompt_sizes[key] = len(one.messages)

    def answer(self, samples: Sequence[Any], outputs: Sequence[Any], *, is_whole: bool) -> None:
        """Note the engine's answers. Several for one sample come from a server, with messages of their own."""
        if len(samples) != len(outputs):
            return
        for one, output in zip(samples, outputs, strict=True):
            request = self._requests.get(_key(one))
            if request is None:
                continue
            request.choices.append(output.response.choices[0])
            request.is_whole = is_whole or output.messages is not None
            request.messages = request.messages if output.messages is None else output.messages

    def answered(self, generation: Generation) -> list[Any]:
        """The samples of a generation that the model has answered."""
        found = [one for one in self._requests.values() if one.generation is generation and one.choices]
        return [one.as_sample() for one in found]

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._requests.pop(key, None)
            self.prompt_sizes.pop(key, None)


def _key(one: Any) -> str:
    return str(getattr(one, "request_id", None) or one.uuid)


def _logprobs(choice: Any) -> list[float]:
    known: Mapping[str, Any] = choice.logprobs or {}
    return [item["logprob"] for item in known.get("content", ())]


def see_turn(observer: Observer, requests: Requests, generation: Generation, call: Call) -> Any:
    """One turn of some requests: what the model was asked, and what it answered."""
    asked: Sequence[Any] = ()
    with observer.guarded("see what the model is asked"):
        asked = call.arguments["samples"]
        requests.ask(asked, generation)
    out = call.run()
    with observer.guarded("see what the model answered"):
        requests.answer(asked, out, is_whole=_is_whole(observer.trainer))
    return out


def _is_whole(trainer: Any) -> bool:
    """Whether a scheduler in this process puts the answers into the conversations."""
    has_scheduler = getattr(trainer, "multi_turn_scheduler", None) is not None
    return has_scheduler and not getattr(trainer, "enable_server_multi_turn", False)


class SwiftHost(TRLHost):
    """Known by its methods: its class has the name of TRL's."""

    def matches(self, trainer: Any) -> bool:
        return not self.missing(trainer)
