"""Send rollouts to tables in Weights & Biases: in the trainer's own run if it has one, otherwise in a separate run."""

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
from rollout_plugins.sinks._common import SCOPES, describe_image, thumbnail, traces_for_scope
from rollout_plugins.sinks._traces import shape_each
from rollout_plugins.sinks._tracker import TrackerSink
from rollout_plugins.sinks.wandb.table_columns import TableColumns
from rollout_plugins.sinks.wandb.weave import Weave
from rollout_plugins.system.option_checks import check, flag, integer, one_of, optional_name

logger = logging.getLogger("rollout_plugins")

INCREMENTS = 100
"""A workspace shows the latest 100 increments of a table, so after as many we start a new table."""
ROWS = 10_000
"""wandb keeps this many rows of one increment and drops the others without a warning."""


class WandbSink(TrackerSink):
    """Logs a table row for each rollout. Each step adds its rows to a table; every hundredth step starts a new table.

    WandbSink()                                      # the trainer's run, or one named after the run
    WandbSink(project="math", name="run-1")          # a separate run
    WandbSink(max_rows=64, max_chars=4_000)          # at most this many rows a step and characters a cell
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
            optional_name("project", project),
            optional_name("name", name),
            integer("max_rows", max_rows, 1),
            integer("max_chars", max_chars, 100),
            integer("image_side", image_side, 16),
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
        self._tables: dict[str, _TableSeries] = {}
        self._has_warned_of_cap = False

    @property
    def target(self) -> str:
        """The destination of the rollouts, as a text that is always the same for the same destination."""
        run = self._sender
        return f"wandb:{run.entity or ''}/{run.project}/{run.id}" if run is not None else "wandb"

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> list[str]:
        traces = self._capped(traces_for_scope(self.scope, traces, step))
        if not traces:
            return []
        sender = self._open()
        if getattr(sender, "disabled", False):
            raise SetupError("wandb is disabled and keeps nothing: unset WANDB_MODE, or set it to offline")
        prepared = shape_each(traces, step, lambda trace: trace)
        for start in range(0, len(prepared), ROWS):
            self._add(sender, prepared[start : start + ROWS], step)
        self._send_to_weave(prepared, sender)
        return [trace.rollout_id for trace in traces]

    def _send_to_weave(self, traces: Sequence[Trace], sender: Any) -> None:
        """Send the traces to Weave, too.

        An error must not reach the engine, which would then send the whole batch to the table again.
        """
        try:
            if self._weave is not None:
                self._weave.send(traces, sender)
        except Exception as error:
            logger.warning("Weave does not show all of %d rollouts, but the table does: %r", len(traces), error)

    def _current_run(self) -> Any:
        return self._tracker.run

    def _forget(self) -> None:
        self._tables.clear()
        if self._weave is not None:
            self._weave.flush()

    def _capped(self, traces: Sequence[Trace]) -> Sequence[Trace]:
        if self.scope == "stream" or len(traces) <= self._most_rows:
            return traces
        if not self._has_warned_of_cap:
            self._has_warned_of_cap = True
            logger.warning("wandb shows %d of %d rollouts in a step (max_rows)", self._most_rows, len(traces))
        return traces[: self._most_rows]

    def _add(self, sender: Any, traces: Sequence[Trace], step: Step) -> None:
        """Add the rows, without `step=`: wandb counts its own calls, and a trainer makes several of them in a step."""
        key = "eval_rollouts" if step.split == "eval" else "rollouts"
        table = self._tables.get(key)
        if table is None:
            names = self._run.reward_names if self._run else ()
            table = self._tables[key] = _TableSeries(key, TableColumns(traces, names, self._most_chars), self._tracker)
        sheets: dict[tuple[str, ...], Any] = {}
        rows = [table.columns.row(trace, partial(self._cached_sheet, sheets)) for trace in traces]
        table.add(rows, step.step, lambda name, value: sender.log({name: value, "train/global_step": step.step}))

    def _cached_sheet(self, sheets: dict[tuple[str, ...], Any], images: Sequence[Image]) -> Any:
        """Return one thumbnail with all images of a rollout side by side. Siblings share it."""
        if not images:
            return None
        key = tuple(image.hash for image in images)
        if key not in sheets:
            sheets[key] = self._contact_sheet(images)
        return sheets[key]

    def _contact_sheet(self, images: Sequence[Image]) -> Any:
        from PIL import Image as Pictures

        thumbnails = [self._thumbnail(image) for image in images[:4]]
        pictures = [Pictures.open(io.BytesIO(data)) for data in thumbnails if data]
        if not pictures:
            return None
        sheet = Pictures.new("RGB", (sum(p.width for p in pictures), max(p.height for p in pictures)), "white")
        left = 0
        for picture in pictures:
            sheet.paste(picture, (left, 0))
            left += picture.width
        missing = [describe_image(image) for image, data in zip(images, thumbnails, strict=False) if not data]
        caption = [f"{len(pictures)} of {len(images)} images"] * (len(pictures) < len(images)) + missing
        return self._tracker.Image(sheet, file_type="jpg", caption=", ".join(caption) or None)

    def _thumbnail(self, image: Image) -> bytes | None:
        file = self._file(image)
        return thumbnail(file, self._side) if file else None

    def _open_own(self, run: Run) -> Any:
        self._check_login()
        name = self._own_name(run)
        rank = f"-rank{run.rank}" if self.scope == "rank" else ""
        return self._tracker.init(
            project=self._project or os.environ.get("WANDB_PROJECT") or "rollouts",
            name=f"{name}{rank}",
            id=re.sub(r"[^A-Za-z0-9_-]+", "-", run.id)[: 64 - len(rank)] + rank,
            group=name if rank else None,
            resume="allow",
            reinit="create_new",  # independent of other runs in this process
            config={"rollouts_run": run.id, "model": run.model, "trainer": run.trainer},
            settings=self._tracker.Settings(console="off"),
        )

    def _check_login(self) -> None:
        """Raise an error without an API key. wandb would ask for the key on the terminal of the running training."""
        login = self._tracker.login
        can_ask = "prompt" in inspect.signature(login).parameters
        if can_ask and self._tracker.setup().settings.mode == "online" and not login(prompt=False):
            raise SetupError("wandb has no API key: run 'wandb login', or set WANDB_MODE=offline")


class _TableSeries:
    """The tables of one key, one after another.

    wandb keeps each row that it logged in memory, so we drop the logged ones.
    """

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
            self._table = None  # otherwise the next increment would contain these rows as well
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
        """Return a name that no earlier table has. Two tables start in one step when the first of them failed."""
        self._names.append(name)
        times = self._names.count(name)
        return name if times == 1 else f"{name}_{times}"
