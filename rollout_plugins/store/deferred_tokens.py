"""Keep the tokens of the last generations in memory, and write them only when something went wrong.

`fault_tokens/<attempt>-<rank>-<step>.parquet` holds the tokens of rollouts whose rows have none: `id`, `step`,
`generation` and `tokens`, as in the rows of a run that keeps all tokens.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_plugins.store.schema import SCHEMA
from rollout_plugins.system.files import replace_file

FOLDER = "fault_tokens"
COLUMNS = ("id", "step", "generation", "tokens")
MOST_BYTES = 512 * 2**20


@dataclass
class DeferredTokens:
    """The tokens of the last generations, at most `most_bytes` of them."""

    most_bytes: int = MOST_BYTES
    dropped: int = 0
    """Rollouts whose tokens were dropped for lack of room, since the last clean log."""
    _batches: deque[pa.RecordBatch] = field(default_factory=deque)

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the tokens of a generation's rows, and return the rows without them."""
        self._batches.append(pa.RecordBatch.from_arrays([batch.column(name) for name in COLUMNS], names=list(COLUMNS)))
        while len(self._batches) > 1 and sum(one.nbytes for one in self._batches) > self.most_bytes:
            self.dropped += self._batches.popleft().num_rows
        return without_tokens(batch)

    def discard(self, last_step: int) -> None:
        """Drop the tokens of generations that began at `last_step` or earlier."""
        self.dropped = 0
        self._batches = deque(one for one in self._batches if pc.max(one["step"]).as_py() > last_step)

    def write(self, folder: Path, stem: str, step: int) -> list[int]:
        """Write all tokens in memory, and return the steps that they are of."""
        if not self._batches:
            return []
        table = pa.Table.from_batches(self._batches)
        path = folder / FOLDER / f"{stem}-{step:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))
        self._batches.clear()
        return sorted(set(table["step"].to_pylist()))


def without_tokens(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with the tokens left out."""
    place = SCHEMA.get_field_index("tokens")
    return batch.set_column(place, SCHEMA.field(place), pa.nulls(batch.num_rows, SCHEMA.field(place).type))
