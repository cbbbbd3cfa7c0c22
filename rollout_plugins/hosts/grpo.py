"""TRL's GRPOTrainer and its subclasses (GMPO, …), and RLOOTrainer.

Two instance-level wrappers suffice, with the same names and signatures since TRL 0.22: around
`_calculate_rewards`, where prompts and completions exist as messages (the snapshot is taken before any reward
function runs), and around `_generate_and_score_completions`, at whose end the advantages exist. `_generate` and
`_tool_call_loop`, where the trainer has them, add token counts and what happened in each tool call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from rollout_hookspecs import Batch, Emit

from rollout_plugins.hosts.facts import describe_trl
from rollout_plugins.hosts.generation import Generation
from rollout_plugins.hosts.wrapping import Swap, Wraps

_FAMILY = {"GRPOTrainer", "RLOOTrainer"}


class GRPOHost:
    """See the module."""

    name = "grpo"

    def matches(self, trainer: Any) -> bool:
        return any(c.__name__ in _FAMILY and c.__module__.partition(".")[0] == "trl" for c in type(trainer).__mro__)

    def attach(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> Callable[[], None]:
        observer = _Observer(trainer, emit, options)
        return observer.wraps.detach

    def describe(self, trainer: Any) -> Mapping[str, Any]:
        return describe_trl(trainer)

    def recover(self, trainer: Any, count: int) -> Batch | None:
        """The generation that is in the trainer's own log although nobody was attached when it was made."""
        return Generation.from_log(trainer, count)


class _Observer:
    """The wrappers on one trainer, and the generation they are in the middle of."""

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        self.trainer = trainer
        self.emit = emit
        self.options = options
        self.now: Generation | None = None
        self.wraps = Wraps(trainer)
        self.wraps.wrap("_generate_and_score_completions", self._generation, ("inputs",))
        parameters = ("inputs", "prompts", "completions", "completion_ids_list")
        self.wraps.wrap("_calculate_rewards", self._rewards, parameters)
        for name, around in (("_generate", self._tokens), ("_tool_call_loop", self._tools)):
            if hasattr(trainer, name):
                self.wraps.wrap(name, around)

    def _generation(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.wraps.guarded("begin a generation"):
            self.now = Generation(self.trainer, self.options)
        try:
            out = original(*args, **kwargs)
        except BaseException as error:
            self._hand_over(error)
            raise
        if self.now is None or not self.now.count:
            self._hand_over_logged(len(args[0]) if args else 0)
        self._hand_over(None, out)
        return out

    def _hand_over_logged(self, count: int) -> None:
        """The snapshot was not taken, so what the trainer logged has to do."""
        with self.wraps.guarded("record a generation from the trainer's log"):
            batch = Generation.from_log(self.trainer, count)
            if batch is not None:
                self.emit(batch)
            else:
                self.emit.lost("not_observed", count)

    def _hand_over(self, error: BaseException | None, out: Any = None) -> None:
        """What was generated is worth keeping however far the trainer, or we, got with it."""
        now, self.now = self.now, None
        if now is None or not now.count:
            return
        with self.wraps.guarded("read the advantages"):
            now.ended(out) if error is None else now.failed(error)
        with self.wraps.guarded("record a generation"):
            self.emit(now.batch())

    def _rewards(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        now = self.now
        if now is None:
            return original(*args, **kwargs)
        with self.wraps.guarded("take a snapshot of a generation"):
            now.snapshot(*_bound(original, args, kwargs))
        swap: Swap | None = None
        with self.wraps.guarded("watch the reward functions"):
            swap = now.watched_rewards()
        with swap or nullcontext():
            gathered = original(*args, **kwargs)
        with self.wraps.guarded("read the rewards"):
            now.scored(gathered)
        return gathered

    def _tokens(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        if self.now is not None and isinstance(out, tuple):
            self.now.generated = out
        return out

    def _tools(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        now = self.now
        swap: Swap | None = None
        with self.wraps.guarded("watch the tools"):
            swap = now.watched_tools() if now is not None else None
        with swap or nullcontext():
            out = original(*args, **kwargs)
        if now is not None and isinstance(out, tuple) and out:
            now.tool_mask = out[0]
        return out


def _bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(inspect.signature(function).bind(*args, **kwargs).arguments.values())
