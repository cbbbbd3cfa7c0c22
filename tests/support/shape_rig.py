"""What tests of the recorder and of the frameworks' shapes share: recording into a run, and the frameworks' classes."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from trackio.sqlite_storage import SQLiteStorage

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.sinks.trackio import TrackioSink


def keep(folder, *batches, **options):
    """Record batches, a step for each, and read the run back."""
    with RolloutRecorder(dir=folder / "runs", **options) as recorder:
        for step, batch in enumerate(batches, 1):
            recorder.record(step, batch)
    return open_run(folder / "runs")


def through_trackio(folder, *batches, **options):
    """The run, and the traces that trackio has of it."""
    sink = TrackioSink(project=folder.name.replace("_", "-"), name="run")
    run = keep(folder, *batches, plugins=[sink], **options)
    found = SQLiteStorage.get_traces(folder.name.replace("_", "-"), "run", sort="step_asc")
    return run, {trace["metadata"]["id"]: trace for trace in found}


def texts(messages):
    return [(message["role"], message["content"]) for message in messages]


class OnDevice(torch.Tensor):
    """A tensor as if on an accelerator: counts every way its numbers can get to the host. Copies are plain."""

    copies: ClassVar[Counter] = Counter()
    WAYS = ("cpu", "to", "tolist", "item", "numpy", "__iter__", "__getitem__", "__int__", "__float__", "__bool__")

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = func.__name__
        out = super().__torch_function__(func, types, args, kwargs or {})
        if name in cls.WAYS:
            cls.copies[name] += 1
        return out.as_subclass(torch.Tensor) if name == "cpu" else out


def on_device(value):
    """The same with every tensor on the counted device."""
    OnDevice.copies.clear()
    if isinstance(value, torch.Tensor):
        return value.as_subclass(OnDevice)
    if isinstance(value, dict):
        return {name: one.as_subclass(OnDevice) for name, one in value.items()}
    return [one if one is None else on_device(one) for one in value]


# --- tinker-cookbook -----------------------------------------------------------------------------------------------


@dataclass
class Ids:
    """`ModelInput` and `TokensWithLogprobs` in one."""

    tokens: list[int]
    maybe_logprobs: list[float] | None = None
    stop_reason: str = "stop"

    @property
    def length(self):
        return len(self.tokens)

    def to_ints(self):
        return self.tokens


@dataclass
class Transition:
    ob: Ids
    ac: Ids
    reward: float
    episode_done: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    logs: dict[str, Any] = field(default_factory=dict)
    trace: Any = None


@dataclass
class Trajectory:
    transitions: list[Transition]


@dataclass
class TrajectoryGroup:
    trajectories_G: list[Any]
    final_rewards_G: list[float]
    metrics_G: list[dict[str, float]]


# --- torchforge ----------------------------------------------------------------------------------------------------


@dataclass
class Completion:
    prompt_ids: torch.Tensor
    token_ids: torch.Tensor
    logprobs: torch.Tensor | None = None
    generator_version: int | None = None
    stop_reason: str | None = None


@dataclass
class Episode:
    episode_id: str = "e"
    pad_id: int = 0
    request_len: int = 8
    response_len: int = 4
    target: Any = None
    request: str | None = None
    response: str | None = None
    completion: Completion | None = None
    ref_logprobs: torch.Tensor | None = None
    reward: float | None = None
    reward_breakdown: dict[str, float] | None = None
    advantage: float | None = None

    @property
    def policy_version(self):
        return self.completion.generator_version
