"""Record a custom training loop: `with RolloutRecorder() as recorder: recorder.record(step, rollouts)`."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Batch, Run

from rollout_plugins.content.foreign_values import CopiedBatch, CopyOptions, ForeignRollouts
from rollout_plugins.content.logged import loggable_values
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.engine.env_vars import flag
from rollout_plugins.engine.error_text import error_text
from rollout_plugins.engine.loop_rollouts import rows
from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.engine.record_arguments import RecordArguments, apply_arguments, record_arguments
from rollout_plugins.engine.run_id import claim_attempt, identify_loop, place_in_launch
from rollout_plugins.engine.run_setup import checked_dir, end_run, end_with, load_plugins, start_run
from rollout_plugins.errors import SetupError
from rollout_plugins.hosts.kit.trainer_facts import installed
from rollout_plugins.store.write import run_file
from rollout_plugins.system.warn_once import Once

if TYPE_CHECKING:
    from typing_extensions import Self


_PACKAGES = (
    "rollout-plugins", "torch", "transformers", "vllm", "sglang", "verl", "areal", "tinker", "tinker-cookbook",
    "torchforge",
)  # fmt: skip
_recorders = itertools.count()


class RolloutRecorder:
    """Records every rollout that a training loop passes to it, and passes them to plugins.

    Setup mistakes raise a `SetupError` with the fix, in the constructor and in the first `record`. After the first
    recorded batch, nothing raises and nothing waits: rollouts that cannot be recorded are counted, by reason.

    Args:
        plugins: instances or names of plugins, run in this order, for example `["redact", "trackio"]`.
        dir: the folder of runs.
        disable: names of plugins that must not run.
        config: options of plugins that are given by name, for example `{"cap": {"max_per_step": 8}}`.
        mirror: a URL, such as `s3://bucket/runs`, that the run is copied to while it is recorded; see `Mirror`.
        autoload: whether installed plugins run without being named.
        strict: let errors of plugins, and of later batches, end the loop; for tests.
        sync: do all work on the thread that records; for debugging.
        tokens: also record token ids, masks and log-probabilities.
        on_full: "drop" the newest batch when recording falls behind, or "block" until it catches up.
        end_seconds: how long `close` may wait for the store and the sinks together; whatever is not finished by
            then is counted. Default 30, or the value of `ROLLOUT_PLUGINS_END_SECONDS`.
        run_id: a name for the run. If the run exists, this is its next attempt. Several processes that torchrun did
            not start need the same name.
        rank: this process's number among those that record the run, from 0; default: the value of `RANK`.
            Processes without distinct ranks are separate attempts.
        world_size: how many processes record the run; default: the value of `WORLD_SIZE`.
        resumed_from: the step of the checkpoint from which this attempt continues. Readers skip what earlier
            attempts recorded after that step. By default they skip nothing.
        trainer: name of the loop.
        model: name or path of the model.
        tools: JSON schemas of the tools.
        reward_names: names of the rewards, each of which has a column; default: those of the first batch.
        reward_weights: their weights, for the total of rollouts without a `reward`.
        chat_template: the chat template.
        settings: other settings that explain the rollouts.
    """

    def __init__(
        self,
        plugins: Sequence[Any] | None = (),
        *,
        dir: str | os.PathLike[str] = "runs",  # noqa: A002 - the name people expect
        disable: Iterable[str] = (),
        config: Mapping[str, Mapping[str, Any]] | None = None,
        mirror: str | None = None,
        autoload: bool = True,
        strict: bool = False,
        sync: bool = False,
        tokens: bool = False,
        on_full: str = "drop",
        end_seconds: float | None = None,
        run_id: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        resumed_from: int | None = None,
        trainer: str = "",
        model: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        reward_names: Sequence[str] = (),
        reward_weights: Sequence[float] = (),
        chat_template: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        root = checked_dir(dir) or Path("runs").absolute()
        _check_run_options(run_id, resumed_from, reward_names, reward_weights)
        self._plugins = load_plugins(plugins, config, disable=disable, mirror=mirror, autoload=autoload)
        self._plugins.add_cap()
        self._plugins.check_all_options_are_used()
        self._strict = strict or flag("STRICT", default=False)
        if tokens not in {False, True}:
            raise SetupError(f"tokens is {tokens!r}; accepted: True, False")
        self._tokens, self._may_block = tokens, on_full == "block"
        self._pipeline = Pipeline(
            self._plugins, strict=self._strict, sync=sync, on_full=on_full, end_seconds=end_seconds
        )
        end_with(self, partial(end_run, self._pipeline))
        rank, world_size = _checked_rank(rank, world_size)
        identity = identify_loop(
            root, next(_recorders), run_id, resumed_from, file=run_file(rank), world_size=world_size
        )
        self._run = Run(
            id=identity.id,
            attempt=identity.attempt,
            dir=str(root / identity.id),
            rank=rank,
            world_size=world_size,
            trainer=trainer,
            host="recorder",
            model=model,
            reward_names=tuple(reward_names),
            reward_weights=tuple(map(float, reward_weights)),
            tools=tuple(tools),
            chat_template=chat_template,
            versions={package: version for package in _PACKAGES if (version := installed(package))},
            settings=dict(settings or {}),
            resumed_from=identity.resumed_from,
        )
        self._generation = identity.generation
        self._pid = os.getpid()  # a forked child has this object, but no worker thread
        self._lock = threading.RLock()  # a signal handler may record, too
        self._is_started = self._is_closed = False
        self._has_recorded = False
        """Whether a batch was accepted. From then on, nothing raises."""
        self._last_step = 0
        self._early_logs: list[Callable[[], None]] = []
        self._once = Once()

    @property
    def run(self) -> Run:
        """The run: its id, its folder, its attempt."""
        return self._run

    # --- recording ----------------------------------------------------------------------------------------------

    def record(
        self,
        step: int,
        rollouts: Any,
        *,
        split: str = "train",
        policy_step: int | None = None,
        group_size: int | None = None,
    ) -> None:
        """Record one generation batch. The caller may change the objects in it as soon as this returns.

        Three kinds of objects are not copied: images opened from a file, arrays on a device, and arrays of 64 MB or
        more.

        Args:
            step: the (first) optimizer step that trains on the batch, or at which the evaluation ran.
            rollouts: `Rollout` records, dicts with their fields, or None for a rejected one; or the result of a
                function in `rollout_plugins.shapes`.
            split: "train" or "eval".
            policy_step: number of updates that the generating weights had, for rollouts without their own.
            group_size: number of consecutive rollouts that share a prompt. By default, rollouts with the same `group`
                form a group, or else those with the same prompt.
        """
        batch = self._prepare(rollouts, step=step, split=split, policy_step=policy_step, group_size=group_size)
        if batch is not None:
            self._submit(*batch)
        self._pipeline.raise_strict()

    async def arecord(
        self,
        step: int,
        rollouts: Any,
        *,
        split: str = "train",
        policy_step: int | None = None,
        group_size: int | None = None,
    ) -> None:
        """Record like `record` without blocking the event loop, which matters with `on_full="block"`."""
        batch = self._prepare(rollouts, step=step, split=split, policy_step=policy_step, group_size=group_size)
        if batch is not None and self._may_block:
            await asyncio.to_thread(self._submit, *batch)
        elif batch is not None:
            self._submit(*batch)
        self._pipeline.raise_strict()

    def _prepare(self, rollouts: Any, **arguments: Any) -> tuple[Batch, CopiedBatch] | None:
        """Return the batch, independent of what the loop does next; None if it cannot be recorded."""
        if not self._is_open():
            self._count_lost("recorder_closed", rollouts)
            return None
        started = time.perf_counter()
        is_checked = self._strict or not self._has_recorded
        try:
            checked = record_arguments(**arguments, last_step=self._last_step, is_checked=is_checked)
            if is_checked:
                _check_groups(rollouts, checked.group_size)
            foreign_rollouts = rollouts if isinstance(rollouts, ForeignRollouts) else rows(rollouts)
            copied_batch = foreign_rollouts.take(CopyOptions(tokens=self._tokens, checked=is_checked))
        except Exception as error:
            if is_checked and (self._strict or isinstance(error, SetupError)):
                raise
            self._once.warn(f"a batch could not be recorded: {error_text(error)}; the loop continues without it")
            self._count_lost("unreadable", rollouts)
            return None
        self._last_step = checked.step
        return self._batch(checked, copied_batch, started), copied_batch

    def _batch(self, arguments: RecordArguments, copied_batch: CopiedBatch, started: float) -> Batch:
        # Do not capture `self`: a queued batch must not keep an unreferenced recorder alive.
        run, recorded_at, tokens, counters = self._run, time.time(), self._tokens, self._pipeline.counters

        def build() -> RolloutColumns:
            rollouts = copied_batch.build()
            for reason in rollouts.lost.values():
                counters.drop(reason)
            return apply_arguments(rollouts, arguments, run, recorded_at=recorded_at, tokens=tokens)

        return Batch(
            build=build,
            split=arguments.split,
            step=arguments.step,
            count=copied_batch.count,
            bytes=copied_batch.bytes,
            seconds=time.perf_counter() - started,
        )

    def _submit(self, batch: Batch, copied_batch: CopiedBatch) -> None:
        with self._lock:
            if not self._is_started:
                self._safely("begin the run", lambda: self._start(copied_batch))
                self._is_started = True
            self._pipeline.submit(batch)
            while self._early_logs:
                self._early_logs.pop(0)()
            self._has_recorded = True

    def _start(self, copied_batch: CopiedBatch) -> None:
        """Start the run. Its rewards are by default those of the first batch."""
        self._run = claim_attempt(replace(self._run, reward_names=self._run.reward_names or copied_batch.reward_names))
        start_run(self._pipeline, self._plugins, self._run, self._generation, trainer=None, safely=self._safely)

    def _is_open(self) -> bool:
        if self._pid != os.getpid():
            self._once.warn("this recorder was opened by another process and records nothing here; open one in each")
            return False
        if self._is_closed or (self._is_started and self._pipeline.run is None):
            self._once.warn("this recorder is closed and no longer records; open another one with the same run_id")
            return False
        return True

    def _count_lost(self, reason: str, rollouts: Any) -> None:
        self._pipeline.counters.drop(reason, len(rollouts) if isinstance(rollouts, (list, tuple)) else 1)

    def _safely(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # from a sink of a third party
            self._once.warn(f"could not {what}: {error_text(error)}; recording continues without it")

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Store values that the loop logs at a step, such as loss and grad_norm, for charts and the table `steps`."""

        def write() -> None:
            self._pipeline.log(step, logged)

        logged: dict[str, Any] = {}
        self._safely("store the log", lambda: logged.update(loggable_values(values)))
        with self._lock:
            if self._is_open() and not self._is_started:
                self._early_logs.append(write)  # a run starts with its first batch
            elif self._is_open():
                self._safely("store the log", write)

    # --- metrics and the end --------------------------------------------------------------------------------------

    def metrics(self, split: str = "train") -> dict[str, float]:
        """Return the plugins' metrics since the last call, for the loop's own logger. Never waits."""
        return self._pipeline.log_metrics(split)

    def flush(self, seconds: float = 30.0) -> bool:
        """Wait until the store and the sinks have all rollouts so far, at most `seconds`; return whether they do."""
        done = self._pipeline.drain(seconds)
        self._pipeline.raise_strict()
        return done

    async def aflush(self, seconds: float = 30.0) -> bool:
        """Flush like `flush` without blocking the event loop."""
        return await asyncio.to_thread(self.flush, seconds)

    def close(self) -> None:
        """End the run: store and send everything. Leaving the `with` block calls this, or otherwise the end of the
        process.
        """
        if self._pid == os.getpid():
            self._is_closed = True
        end_run(self._pipeline)
        self._pipeline.raise_strict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.close)


def _check_run_options(run_id: Any, resumed_from: Any, names: Sequence[str], weights: Sequence[float]) -> None:
    if run_id is not None and (not isinstance(run_id, str) or Path(run_id).name != run_id or run_id[:1] in {"", "."}):
        raise SetupError(f"run_id is {run_id!r}; give a valid folder name, without slashes and without a leading dot")
    if resumed_from is not None and run_id is None:
        raise SetupError("resumed_from needs run_id, the run that continues; give both")
    if isinstance(names, str) or (weights and len(weights) != len(names)):
        raise SetupError(
            f"{len(weights)} reward_weights for reward_names {names!r}; give a list of names, and one weight for each"
        )


def _checked_rank(rank: Any, world_size: Any) -> tuple[int, int]:
    """Return this process's rank and the number of ranks: the arguments, or what the launcher set."""
    if rank is None and world_size is None:
        return place_in_launch()
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        raise SetupError(
            f"rank is {rank!r} and world_size {world_size!r}; give both as integers, with a rank from 0 to "
            "world_size - 1"
        )
    return rank, world_size


def _check_groups(rollouts: Any, group_size: int | None) -> None:
    if group_size and isinstance(rollouts, (list, tuple)) and len(rollouts) % group_size:
        raise SetupError(
            f"{len(rollouts)} rollouts do not divide into groups of {group_size}; "
            "leave group_size out, and give each rollout a group"
        )
