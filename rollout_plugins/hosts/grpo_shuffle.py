"""Record the order in which the trainer trains a generation, without drawing from its random numbers.

Right after `_generate_and_score_completions` returns, TRL shuffles its rows with `torch.randperm` and splits them into
micro-batches. The state of the generator at that moment is copied here, which does not change it. The worker thread
then draws the same permutation from a generator of its own.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, Final

from rollout_plugins.hosts.kit.observed_generation import Generation

PLACE: Final = "trained_place"
"""In `extra`: the place of a rollout among those that its rank trains on. Micro-batches are consecutive places."""


def watch_shuffle(generation: Generation, trainer: Any) -> None:
    """Copy the state of the generator that the trainer is about to shuffle with."""
    if generation.split != "train" or not generation.count or not _shuffles(trainer):
        return
    import torch

    generation.later.append(partial(_add_places, generation, torch.get_rng_state()))


def _shuffles(trainer: Any) -> bool:
    prepare = inspect.unwrap(type(trainer)._prepare_inputs)  # noqa: SLF001 - TRL's method
    return "shuffle_sequence_dict" in getattr(getattr(prepare, "__code__", None), "co_names", ())


def _add_places(generation: Generation, state: Any) -> None:
    import torch

    generator = torch.Generator()
    generator.set_state(state)
    order = torch.randperm(generation.count, generator=generator).tolist()
    places = [0] * generation.count
    for place, row in enumerate(order):
        places[row] = place
    generation.extra[PLACE] = places
