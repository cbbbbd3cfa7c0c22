"""Write columns that are added to rollouts later, without rewriting the rollouts.

Each call of `annotate` writes `annotations/<producer>/<time>-<shape>-<random>.parquet` with `id` and the producer's
columns. Files are only ever added. For each rollout and column, the latest value counts. A later call that omits a
column keeps its value, and one that sets it to None removes it.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from rollout_plugins.content.exact_json import replace_surrogates
from rollout_plugins.store.schema import TEXT
from rollout_plugins.store.write import write_parquet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PRODUCER = b"rollout_plugins.producer"


def write_texts(folder: Path, producer: str, rows: Sequence[Mapping[str, str]]) -> Path:
    """Write rows of texts, which all have the same columns, `id` among them."""
    columns = {name: pa.array([replace_surrogates(row[name]) for row in rows], TEXT) for name in rows[0]}
    return write_annotations(folder, producer, pa.table(columns))


def write_annotations(
    folder: Path, producer: str, table: pa.Table, metadata: Mapping[bytes, bytes] | None = None
) -> Path:
    """Write one annotation file to a run's folder, with `id` and the producer's columns."""
    target = folder / "annotations" / folder_name(producer)
    target.mkdir(parents=True, exist_ok=True)
    file = _new_file(target, table.schema)
    labelled = table.replace_schema_metadata({PRODUCER: sql_name(producer).encode(), **(metadata or {})})
    write_parquet(file, [labelled])
    return file


def folder_name(producer: str) -> str:
    """Return a safe folder name: `producer` itself, or if it has unsafe characters, the safe ones plus a hash."""
    if re.fullmatch(r"[a-z0-9_][a-z0-9_-]{0,60}", producer):
        return producer
    digest = hashlib.sha256(producer.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{re.sub(r'[^a-z0-9_]+', '-', producer.lower())[:40].strip('-') or 'producer'}-{digest}"


def sql_name(text: str) -> str:
    """Return a name that SQL can express."""
    return replace_surrogates(text).replace("\0", "\u2400")


def _new_file(folder: Path, schema: pa.Schema) -> Path:
    """Return the path of a new file that sorts after all others of the folder, with a hash of its columns."""
    newest = max(
        (int(stamp) for path in folder.glob("*.parquet") if (stamp := path.name.partition("-")[0]).isdigit()),
        default=0,
    )
    shape = hashlib.sha256(str(schema.remove_metadata()).encode("utf-8", "replace")).hexdigest()[:12]
    return folder / f"{max(time.time_ns(), newest + 1):020d}-{shape}-{os.getpid():x}{uuid4().hex[:6]}.parquet"
