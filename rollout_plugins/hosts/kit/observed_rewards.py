"""Record the results of each reward function for one generation, unconverted where possible."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

from rollout_plugins.content.rewards import weighted_sum
from rollout_plugins.hosts.kit.stand_ins import AsyncStandIn, StandIn, swapped
from rollout_plugins.hosts.kit.trainer_facts import reward_names, reward_weights, unwrapped

_FLOATS: Final = frozenset({float, type(None)})
_NUMBERS: Final = _FLOATS | {int, bool}


class Rewards:
    """Names, weights and results of the reward functions. The trainer's tensor cannot tell None from NaN."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._raw: dict[int, Sequence[Any]] = {}
        self._used: dict[int, Sequence[float]] = {}
        """Rewards that the trainer uses instead of a function's results."""
        self.is_paused = False
        """Whether the functions currently score another generation."""
        self.names = reward_names(trainer)
        self.weigh()
        self.numbers: Callable[[int], Sequence[float] | None] = lambda _: None
        """Reads one function's rewards from the trainer if the function itself was not observed."""
        self.rows: list[list[float | None]] = []
        """The rewards of each rollout, once they are read."""

    def weigh(self) -> None:
        """Read the weights again: a reward function may have changed them."""
        self.weights = reward_weights(self._trainer, len(self.names))

    def watched(self) -> AbstractContextManager[None]:
        """Replace the reward functions for one call by stand-ins that record their results."""
        functions = self._trainer.reward_funcs
        if not isinstance(functions, list):
            return nullcontext()
        return swapped(self._trainer, reward_funcs=[self._watched(i, f) for i, f in enumerate(functions)])

    def _watched(self, index: int, function: Any) -> Any:
        if hasattr(function, "forward"):
            return function  # a reward model, which the trainer needs unwrapped
        if _is_async(function):

            async def recording_async(function: Any, /, *args: Any, **kwargs: Any) -> Any:
                result = await function(*args, **kwargs)
                self._record(index, result)
                return result

            return AsyncStandIn(function, recording_async)

        def recording(function: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self._record(index, result)
            return result

        return StandIn(function, recording)

    def _record(self, index: int, result: Any) -> None:
        if not self.is_paused:
            self._raw[index] = _copy_results(result)

    def see_used(self, rows: Sequence[Sequence[float]]) -> None:
        """Store the rewards that the trainer uses, where a subclass changed the functions' results."""
        columns = enumerate(zip(*rows, strict=True))
        self._used = {i: column for i, column in columns if not self.may_be(i, column)}

    @property
    def changed(self) -> list[str]:
        """Functions whose rewards the trainer changed."""
        return [self.names[i] for i in self._used]

    def totals(self) -> list[float | None]:
        """Return the totals that the trainer uses if it changed the rewards; otherwise an empty list."""
        rows = [list(row) for row in self.rows] if self._used else []
        for column, numbers in self._used.items():
            for row, number in zip(rows, numbers, strict=True):
                row[column] = number
        return [weighted_sum(dict(zip(self.names, row, strict=True)), self.weights) for row in rows]

    def may_be(self, index: int, numbers: Sequence[float]) -> bool:
        """Return whether these 32-bit numbers match a function's results; True if the results were not observed."""
        observed = self._used.get(index) or self._raw.get(index, ())
        are_numbers = all(value is None or type(value) in {int, float, bool} for value in observed)
        if len(observed) != len(numbers) or not are_numbers:
            return True
        expected = (math.nan if value is None else value for value in observed)
        return all(
            math.isclose(value, number, rel_tol=1e-6, abs_tol=1e-30) or math.isnan(value)
            for value, number in zip(expected, numbers, strict=True)
        )

    def read(self, count: int) -> list[str]:
        """Fill `rows` from the functions' results, or the trainer's numbers; return the names without either."""
        columns = [self._column(i, count) for i in range(len(self.names))]
        self.rows = list(map(list, zip(*columns, strict=True)))
        return [name for i, name in enumerate(self.names) if i not in self._raw and set(columns[i]) == {None}]

    def _column(self, index: int, count: int) -> list[float | None]:
        raw = self._raw.get(index, ())
        types = set(map(type, raw))
        if len(raw) == count and types <= _NUMBERS:
            return list(raw) if types <= _FLOATS else [None if value is None else float(value) for value in raw]
        numbers = self.numbers(index)
        if numbers is None:
            return [None] * count
        is_missing = [value is None for value in raw] if len(raw) == count else [math.isnan(n) for n in numbers]
        return [None if is_none else number for is_none, number in zip(is_missing, numbers, strict=True)]


def _copy_results(result: Any) -> list[Any]:
    """Copy a function's results, whose array it may reuse. A generator is left for the trainer to consume."""
    with suppress(Exception):  # the trainer reads the result next and raises on a wrong one
        if isinstance(result, (list, tuple)):
            return list(result if set(map(type, result)) <= _NUMBERS else map(_number, result))
        if hasattr(result, "tolist"):
            return list(result if _is_on_device(result) else result.tolist())
    return []


def _number(value: Any) -> Any:
    """Convert a NumPy or torch scalar to a number, unless that would synchronise with a device."""
    if type(value) in _NUMBERS or not hasattr(value, "item") or _is_on_device(value):
        return value
    return value.item()


def _is_on_device(value: Any) -> bool:
    return getattr(getattr(value, "device", None), "type", "cpu") != "cpu"


def _is_async(function: Any) -> bool:
    function = unwrapped(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
