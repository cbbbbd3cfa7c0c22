"""Find the dataset rows of prompts that a trainer has only as token ids, by observing its data collator."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.hosts.kit.decoding import unpadded
from rollout_plugins.hosts.kit.wrapping import Call, Wraps, logger


class Collated:
    """The rows and the prompt ids of one collator call, compared on the worker thread."""

    def __init__(self, rows: Sequence[Any], batch: Any) -> None:
        self.rows = rows
        self._ids, self._mask = batch["prompts"], batch["prompt_attention_mask"]

    @cached_property
    def prompts(self) -> list[list[int]]:
        return unpadded(self._ids, self._mask)

    def rows_of(self, prompts: Sequence[Sequence[int]]) -> Iterator[Sequence[Any]]:
        """Yield the rows of each contiguous match of these prompts."""
        count = len(prompts)
        for start in range(len(self.prompts) - count + 1):
            if self.prompts[start : start + count] == prompts:
                yield self.rows[start : start + count]


class Collating:
    """Observes the collator of the training dataloader, and stores its latest calls."""

    def __init__(self, trainer: Any) -> None:
        ahead = int(getattr(trainer.args, "gradient_accumulation_steps", 1))
        self._latest: deque[Collated] = deque(maxlen=2 * ahead + 8)
        self._wraps = Wraps()
        self._on_loader = Wraps()
        self._wraps.wrap(trainer, "get_train_dataloader", self._loader)
        with self._wraps.guarded("watch the data collator"):
            self._watch(_loader_in_use(trainer))

    def detach(self) -> None:
        self._wraps.detach()
        self._on_loader.detach()

    def latest(self) -> list[Collated]:
        return list(self._latest)

    def _loader(self, call: Call) -> Any:
        loader = call.run()
        with self._wraps.guarded("watch the data collator"):
            self._watch(loader)
        return loader

    def _watch(self, loader: Any) -> None:
        """Wrap the collator of the innermost dataloader, beneath any wrappers such as accelerate's."""
        while loader is not None and "collate_fn" not in vars(loader):
            loader = vars(loader).get("dataloader") or vars(loader).get("base_dataloader")
        if loader is None:
            return
        if loader.num_workers:  # worker processes collate, and our wrapper cannot be pickled to them
            logger.warning(
                "dataloader_num_workers is %d, so the dataset's rows are not visible; prompts are decoded from tokens",
                loader.num_workers,
            )
            return
        self._on_loader.detach()
        self._on_loader = Wraps()
        self._on_loader.wrap(loader, "collate_fn", self._collate)

    def _collate(self, call: Call) -> Any:
        copies: list[Any] = []
        with self._wraps.guarded("see the rows of the dataset"):
            (rows,) = [*call.args, *call.kwargs.values()]
            copies = [Snapshot().copy(row) for row in rows]
        batch = call.run()
        with self._wraps.guarded("see the output of the data collator"):
            if "prompts" in batch and "prompt_attention_mask" in batch:
                self._latest.append(Collated(copies, batch))
        return batch


def _loader_in_use(trainer: Any) -> Any:
    """Return the dataloader of a training that has already begun; otherwise None."""
    handler = getattr(trainer, "callback_handler", None)
    return getattr(handler, "train_dataloader", None)
