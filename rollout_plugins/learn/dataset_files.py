"""Write datasets of conversations as Parquet, with the features that `datasets` reads from the file.

Messages, tools and template arguments are `Json()` features: each value keeps exactly its own keys, so that the
arguments of one call do not pad those of another with nulls. Parquet holds them as JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_plugins.errors import SetupError

TEXT = pa.string()
#: What `datasets` takes for a `Json()` feature; PyArrow has the type since version 19.
JSON = pa.json_() if hasattr(pa, "json_") else None
_FLUSH = 1000
_JSON = {"_type": "Json"}
_VALUES = {TEXT: "string", pa.float64(): "float64", pa.int64(): "int64", pa.bool_(): "bool"}


@dataclass(frozen=True)
class Column:
    """A column of a dataset: its Arrow type, and what `datasets` reads it as."""

    type: pa.DataType
    feature: Mapping[str, Any]


def value_column(kind: pa.DataType) -> Column:
    """Return a column of numbers, texts or booleans."""
    return Column(kind, {"dtype": _VALUES[kind], "_type": "Value"})


JSON_COLUMN = Column(JSON or TEXT, _JSON)
#: A list of JSON values, such as the messages of a conversation.
JSON_LIST_COLUMN = Column(pa.list_(JSON or TEXT), {"feature": _JSON, "_type": "List"})
TEXT_COLUMN = value_column(TEXT)
NUMBER_COLUMN = value_column(pa.float64())
INTEGER_COLUMN = value_column(pa.int64())
BOOLEAN_COLUMN = value_column(pa.bool_())


@dataclass
class DatasetWriter:
    """Writes rows to a Parquet file, a few at a time. `constants`: columns with one value in all rows."""

    file: pq.ParquetWriter
    columns: Mapping[str, Column]
    constants: Mapping[str, pa.Scalar]
    written: int = 0
    _rows: list[Sequence[Any]] = field(default_factory=list)

    def add(self, *values: Any) -> None:
        """Add a row: the values of all columns that are not constants, in order."""
        self._rows.append(values)
        if len(self._rows) >= _FLUSH:
            self.flush()

    def flush(self) -> None:
        """Write the rows that were added."""
        if not self._rows:
            return
        names = [name for name in self.columns if name not in self.constants]
        values = dict(zip(names, zip(*self._rows, strict=True), strict=True))
        arrays = [self._array(name, values) for name in self.columns]
        self.file.write_table(pa.Table.from_arrays(arrays, schema=self.file.schema))
        self.written += len(self._rows)
        self._rows.clear()

    def _array(self, name: str, values: Mapping[str, Sequence[Any]]) -> pa.Array:
        kind = self.columns[name].type
        if name in self.constants:
            return _as_type(pa.repeat(self.constants[name], len(self._rows)), kind)
        if pa.types.is_list(kind):
            lists = values[name]
            starts = [0]
            for one in lists:
                starts.append(starts[-1] + len(one))
            texts = _as_type(pa.array([text for one in lists for text in one], TEXT), kind.value_type)
            return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), texts).cast(kind)
        if kind == JSON:
            return _as_type(pa.array(values[name], TEXT), kind)
        return pa.array(values[name], kind)


def _as_type(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the texts as the extension type for JSON, if that is their type."""
    return pa.ExtensionArray.from_storage(kind, texts) if kind == JSON else texts


@contextmanager
def open_dataset(path: Path, columns: Mapping[str, Column], constants: Mapping[str, str]) -> Iterator[DatasetWriter]:
    """Open a Parquet file for rows of these columns; it is complete when the context ends."""
    if JSON is None:
        raise SetupError(
            f"datasets with JSON columns need pyarrow 19 or newer, not {pa.__version__}: pip install -U pyarrow"
        )
    features = {name: dict(column.feature) for name, column in columns.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema([(name, column.type) for name, column in columns.items()], metadata=metadata)
    scalars = {name: pa.scalar(value, TEXT) for name, value in constants.items()}
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        writer = DatasetWriter(file, columns, scalars)
        yield writer
        writer.flush()
