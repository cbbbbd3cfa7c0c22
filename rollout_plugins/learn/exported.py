"""What an export of training data wrote, and what it left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rollout_plugins.learn.choose_rollouts import Kind


@dataclass
class Exported:
    """What an export wrote, and what it left out."""

    kind: Kind
    path: Path
    """The Parquet file."""
    card: Path
    rows: int = 0
    candidates: int = 0
    """Rollouts that the filters selected."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Rollouts that were not used, by reason; reasons that begin with "rows" count rows."""
    labels: Counter[bool] = field(default_factory=Counter)
    """kto: how many rows have each label."""
    moved_turns: int = 0
    """Rows in which turns that the model shared with others were moved from the answer to the prompt."""
    checked: int | None = None
    """Rollouts that were rendered again and compared with their recorded token ids; None without that check."""
    unchecked_reason: str = ""
    """Why `checked` is None."""
    differing: list[str] = field(default_factory=list)
    """Ids of rollouts whose text renders to other token ids than those that were recorded."""
    sql: str = ""
    """The query that selects the candidates."""

    @property
    def advised_weights(self) -> dict[str, float]:
        """kto: `desirable_weight` and `undesirable_weight` that balance the labels, as TRL advises."""
        good, bad = self.labels[True], self.labels[False]
        if not good or not bad:
            return {}
        weights = {"desirable_weight": bad / good, "undesirable_weight": good / bad}
        return {name: round(max(weight, 1.0), 2) for name, weight in weights.items()}
