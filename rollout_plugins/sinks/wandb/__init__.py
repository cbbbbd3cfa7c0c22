"""Rollouts as tables in Weights & Biases: in the trainer's own run when it has one, else in a run of their own."""

from __future__ import annotations

import inspect
import io
import logging
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rollout_hookspecs import Image, Run, Scope, Step, Trace, hookimpl

from rollout_plugins.errors import SetupError
from rollout_plugins.sinks._common import SCOPES, image_words, meant_for, thumbnail
from rollout_plugins.sinks._traces import shape_each
from rollout_plugins.sinks._tracker import TrackerSink
from rollout_plugins.sinks.wandb.columns import TableColumns
from rollout_plugins.sinks.wandb.weave import Weave
from rollout_plugins.system.option_checks import check, flag, named, one_of, whole

logger = logging.getLogger("rollout_plugins")

INCREMENTS = 100
"""A run's workspace shows the latest 100 additions to a table; the next one goes to a new table."""
ROWS = 10_000
"""Rows wandb keeps of one addition; it cuts the rest off in silence."""


class WandbSink(TrackerSink):
    """A table row for each rollout; each step adds its rows to a table, each hundredth step begins a new one.

    WandbSink()                                      # the trainer's run, or one named after the run
    WandbSink(project="math", name="run-1")          # a run of its own
    WandbSink(max_rows=64, max_chars=4_000)          # at most this many rows a step, characters a cell
    WandbSink(image_side=512)                        # larger thumbnails
    WandbSink(weave=True)                            # and a trace of each rollout in Weave
    """

    TRACKER = report_to = "wandb"

    def __init__(
        self,
        *,
        project: str | None = None,
        name: str | None = None,
        max_rows: int = 256,
        max_chars: int = 30_000,
        image_side: int = 256,
        weave: bool = False,
        scope: Scope = "global",
    ) -> None:
        check(
            "wandb",
            one_of("scope", scope, SCOPES),
            named("project", project),
            named("name", name),
            whole("max_rows", max_rows, 1),
            whole("max_chars", max_chars, 100),
            whole("image_side", image_side, 16),
            flag("weave", weave),
        )
        super().__init__(
            scope=scope,
            project=project,
            name=name,
            max_rows=max_rows,
            max_chars=max_chars,
            image_side=image_side,
            weave=weave,
        )
        self._most_rows, self._most_chars, self._side = max_rows, max_chars, image_side
        self._weave = Weave() if weave else None
        self._tables: dict[str, _Growing] = {}
        self._cut = False

    @property
    def target(self) -> str:
        """Where the rollouts go, in words that stay the same for the same place."""
        run = self._sender
        return f"wandb:{run.entity or ''}/{run.project}/{run.id}" if run is not None else "wandb"

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> list[str]:
        traces = self._capped(meant_for(self.scope, traces, step))
        if not traces:
            return []
        sender = self._open()
        if getattr(sender, "disabled", False):
            raise SetupError("wandb is disabled and keeps nothing; unset WANDB_MODE, or set it to offline")
        kept = shape_each(traces, step, lambda trace: trace)
        for start in range(0, len(kept), ROWS):
            self._add(sender, kept[start : start + ROWS], step)
        self._send_to_weave(kept, sender)
        return [trace.rollout_id for trace in traces]

    def _send_to_weave(self, traces: Sequence[Trace], sender: Any) -> None:
        """Weave shows what the table has. Were its failure the batch's, the batch would be sent to the table again."""
        try:
            if self._weave is not None:
                self._weave.send(traces, sender)
        except Exception as error:
            logger.warning("weave does not show all of %d rollouts, which the table has: %r", len(traces), error)

    def _current(self) -> Any:
        return self._tracker.run

    def _forget(self) -> None:
        self._tables.clear()
        if self._weave is not None:
            self._weave.flush()

    def _capped(self, traces: Sequence[Trace]) -> Sequence[Trace]:
        if self.scope == "stream" or len(traces) <= self._most_rows:
            return traces
        if not self._cut:
            self._cut = True
            logger.warning("wandb shows %d of a step's %d rollouts (max_rows)", self._most_rows, len(traces))
        return traces[: self._most_rows]

    def _add(self, sender: Any, traces: Sequence[Trace], step: Step) -> None:
        """Add the rows. No `step=`: wandb counts its own calls, of which a trainer makes several in a step."""
        key = "eval_rollouts" if step.split == "eval" else "rollouts"
        table = self._tables.get(key)
        if table is None:
            names = self._run.reward_names if self._run else ()
            table = self._tables[key] = _Growing(key, TableColumns(traces, names, self._most_chars), self._tracker)
        pictures: dict[tuple[str, ...], Any] = {}
        rows = [table.columns.row(trace, partial(self._picture, pictures)) for trace in traces]
        table.add(rows, step.step, lambda name, value: sender.log({name: value, "train/global_step": step.step}))

    def _picture(self, made: dict[tuple[str, ...], Any], images: Sequence[Image]) -> Any:
        """One thumbnail of the rollout's images side by side; siblings share it."""
        if not images:
            return None
        key = tuple(image.hash for image in images)
        if key not in made:
            made[key] = self._sheet(images)
        return made[key]

    def _sheet(self, images: Sequence[Image]) -> Any:
        from PIL import Image as Pictures

        small = [self._small(image) for image in images[:4]]
        opened = [Pictures.open(io.BytesIO(pixels)) for pixels in small if pixels]
        if not opened:
            return None
        sheet = Pictures.new("RGB", (sum(p.width for p in opened), max(p.height for p in opened)), "white")
        place = 0
        for picture in opened:
            sheet.paste(picture, (place, 0))
            place += picture.width
        lost = [image_words(image) for image, pixels in zip(images, small, strict=False) if not pixels]
        words = [f"{len(opened)} of {len(images)} images"] * (len(opened) < len(images)) + lost
        return self._tracker.Image(sheet, file_type="jpg", caption=", ".join(words) or None)

    def _small(self, image: Image) -> bytes | None:
        file = self._file(image)
        return thumbnail(file, self._side) if file else None

    def _own(self, run: Run) -> Any:
        self._check_login()
        name = self._own_name(run)
        rank = f"-rank{run.rank}" if self.scope == "rank" else ""
        return self._tracker.init(
            project=self._project or os.environ.get("WANDB_PROJECT") or "rollouts",
            name=f"{name}{rank}",
            id=re.sub(r"[^A-Za-z0-9_-]+", "-", run.id)[: 64 - len(rank)] + rank,
            group=name if rank else None,
            resume="allow",
            reinit="create_new",  # a run beside whatever else this process logs
            config={"rollouts_run": run.id, "model": run.model, "trainer": run.trainer},
            settings=self._tracker.Settings(console="off"),
        )

    def _check_login(self) -> None:
        """Without this wandb would ask for a key on the terminal of a training that is running."""
        login = self._tracker.login
        can_ask = "prompt" in inspect.signature(login).parameters
        if can_ask and self._tracker.setup().settings.mode == "online" and not login(prompt=False):
            raise SetupError("wandb has no API key: run 'wandb login', or set WANDB_MODE=offline")


class _Growing:
    """Tables of one key, one after another. wandb keeps every row it was given in memory: those it has logged go."""

    def __init__(self, key: str, columns: TableColumns, wandb: Any) -> None:
        self.columns = columns
        self._key = key
        self._wandb = wandb
        self._table: Any = None
        self._name = ""
        self._names: list[str] = []
        self._increments = 0

    def add(self, rows: Sequence[list[Any]], step: int, log: Callable[[str, Any], None]) -> None:
        if self._table is None or self._increments >= INCREMENTS:
            self._begin(step)
        try:
            for row in rows:
                self._table.add_data(*row)
            log(self._name, self._table)
        except BaseException:
            self._table = None  # or the next rows would take these with them
            raise
        self._increments += 1
        self._table.data[:] = [[]] * len(self._table.data)

    def _begin(self, step: int) -> None:
        kinds = {**self.columns.kinds, "image": self._wandb.Image}
        self._table = self._wandb.Table(
            columns=list(kinds), data=[], dtype=list(kinds.values()), optional=True, log_mode="INCREMENTAL"
        )
        self._name = self._free_name(f"{self._key}/from_step_{step:06d}")
        self._increments = 0

    def _free_name(self, name: str) -> str:
        """A name that no table before this one has: they may begin in one step when one of them failed."""
        self._names.append(name)
        times = self._names.count(name)
        return name if times == 1 else f"{name}_{times}"
