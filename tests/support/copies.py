"""A trainer of TRL as patching libraries make it: its source under another name, in a module of its own."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from types import ModuleType

APART = {"id", "run_id", "time", "tool_calls"}  # run ids, and the time that tools took
WATCHED = (
    "_calculate_rewards", "_calculate_rewards_from_functions", "_estimate_optimal_values", "_fill_buffer",
    "_generate", "_generate_and_score_completions", "_prepare_inputs", "_prepare_training_batch", "_tool_call_loop",
    "get_train_dataloader", "training_step",
)  # fmt: skip


def copy_of(trainer_class, **replaced):
    """The class's source, renamed and executed elsewhere; each method that may be watched in a bare wrapper."""
    name = trainer_class.__name__
    source = inspect.getsource(trainer_class).replace(f"class {name}(", f"class _Copied{name}(", 1)
    for before, after in replaced.values():
        assert before in source, before
        source = source.replace(before, after)
    module = ModuleType(f"Copied{name}")
    vars(module).update(vars(sys.modules[trainer_class.__module__]), __name__=module.__name__)
    exec(compile(source, f"{module.__name__}.py", "exec"), vars(module))
    copied = vars(module)[f"_Copied{name}"]
    for method in WATCHED:
        if inspect.isfunction(vars(copied).get(method)):
            setattr(copied, method, bare(vars(copied)[method]))
    return type(f"Copied{name}", (copied,), {"__module__": module.__name__})


def bare(original):
    """A wrapper that tells nothing of what it wraps."""

    def wrapped(self, *args, **kwargs):
        return original(self, *args, **kwargs)

    return wrapped


#: Timings, and what a replay needs, which is known of TRL's own classes alone.
APART_IN_EXTRA = {"seconds_in_queue", "trained_place"}


def facts(rollout):
    """All that is known of a rollout, but what differs from run to run."""
    known = {f.name: getattr(rollout, f.name) for f in dataclasses.fields(rollout) if f.name not in APART}
    known["extra"] = {name: value for name, value in rollout.extra.items() if name not in APART_IN_EXTRA}
    return known | {"tool_calls": [dataclasses.replace(call, seconds=None) for call in rollout.tool_calls]}
