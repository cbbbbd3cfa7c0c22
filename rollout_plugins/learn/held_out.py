"""Read the ids of prompts that must not be trained on."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_plugins.errors import RunError

COLUMN = "prompt_id"


def read_prompt_ids(path: Path) -> set[str]:
    """Return the prompt ids in a file: Parquet or JSON lines with a column `prompt_id`, or text with one id a line."""
    try:
        if path.suffix.lower() in {".parquet", ".pq"}:
            return set(pq.read_table(path, columns=[COLUMN])[COLUMN].to_pylist())
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return {orjson.loads(line)[COLUMN] for line in lines} if lines and lines[0][0] == "{" else set(lines)
    except FileNotFoundError:
        raise RunError(f"{path} does not exist, so no prompt can be excluded") from None
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise RunError(f"{path} has no readable column {COLUMN!r}: {error}") from error
