"""Read the tokens that `tokens="on-fault"` stored after something went wrong."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from rollout_hookspecs import Tokens

from rollout_plugins.errors import RunError
from rollout_plugins.store.deferred_tokens import FOLDER
from rollout_plugins.system.node_folders import nodes_of


def read_fault_tokens(folder: Path, step: int) -> dict[str, Tokens]:
    """Return the tokens of the rollouts of a step, by id, as far as a run's folder has them."""
    tokens: dict[str, Tokens] = {}
    for node in nodes_of(folder):
        for path in sorted((node / FOLDER).glob("*.parquet")):
            try:
                rows = pq.read_table(path, filters=[("step", "=", step)], partitioning=None).to_pylist()
            except Exception as error:
                raise RunError(f"{path} cannot be read: {error}") from error
            tokens |= {row["id"]: Tokens(**row["tokens"]) for row in rows if row["tokens"] is not None}
    return tokens
