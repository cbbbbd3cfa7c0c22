"""Record what ms-swift asks its engine in each turn, and the answers, until the samples are complete and scored.

A scheduler runs between two turns. If it raises, the samples never become complete, and these records are all there
is.
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
    """One sample, with its answers so far."""

    sample: Any
    generation: Generation
    messages: list[Any]
    """The trainer's own list, which its scheduler continues to use."""
    choices: list[Any] = field(default_factory=list)
    is_complete: bool = False
    """Whether the messages contain the last answer, too."""

    def as_sample(self) -> Any:
        """Return the sample as it would be if the trainer had finished it already."""
        sample, last = copy.copy(self.sample), self.choices[-1]
        answer = {"role": "assistant", "content": last.message.content}
        sample.messages = [*self.messages, *([] if self.is_complete else [answer])]
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
        """How many messages the first request of each sample had."""

    def ask(self, samples: Sequence[Any], generation: Generation) -> None:
        """Record the requests of this turn: samples in the first turn, requests with the same ids in later ones."""
        for sample in samples:
            key = _key(sample)
            if key in self._requests:
                self._requests[key].messages = sample.messages
            elif hasattr(sample, "request_id"):  # a request that the scheduler created belongs to no sample
                self._requests[key] = Request(sample, generation, sample.messages)
                self.prompt_sizes[key] = len(sample.messages)

    def answer(self, samples: Sequence[Any], outputs: Sequence[Any], *, is_complete: bool) -> None:
        """Record the engine's answers. A server may return several answers of a sample, with its own messages."""
        if len(samples) != len(outputs):
            return
        for sample, output in zip(samples, outputs, strict=True):
            request = self._requests.get(_key(sample))
            if request is None:
                continue
            request.choices.append(output.response.choices[0])
            request.is_complete = is_complete or output.messages is not None
            request.messages = request.messages if output.messages is None else output.messages

    def answered(self, generation: Generation) -> list[Any]:
        """Return the samples of a generation that the model has answered."""
        requests = [r for r in self._requests.values() if r.generation is generation and r.choices]
        return [request.as_sample() for request in requests]

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._requests.pop(key, None)
            self.prompt_sizes.pop(key, None)


def _key(sample: Any) -> str:
    return str(getattr(sample, "request_id", None) or sample.uuid)


def _logprobs(choice: Any) -> list[float]:
    logprobs: Mapping[str, Any] = choice.logprobs or {}
    return [item["logprob"] for item in logprobs.get("content", ())]


def see_turn(observer: Observer, requests: Requests, generation: Generation, call: Call) -> Any:
    """Run one turn of some requests, and record the requests and the answers."""
    samples: Sequence[Any] = ()
    with observer.guarded("see the requests to the model"):
        samples = call.arguments["samples"]
        requests.ask(samples, generation)
    out = call.run()
    with observer.guarded("see the model's answers"):
        requests.answer(samples, out, is_complete=_completes_messages(observer.trainer))
    return out


def _completes_messages(trainer: Any) -> bool:
    """Return whether a scheduler in this process adds the answers to the conversations."""
    has_scheduler = getattr(trainer, "multi_turn_scheduler", None) is not None
    return has_scheduler and not getattr(trainer, "enable_server_multi_turn", False)


class SwiftHost(TRLHost):
    """A host that matches trainers by their methods, because ms-swift's class has the same name as TRL's."""

    def matches(self, trainer: Any) -> bool:
        return not self.missing(trainer)
