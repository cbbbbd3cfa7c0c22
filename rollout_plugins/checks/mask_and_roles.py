"""Masks that disagree with who wrote what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import GenerationColumns, Integers, columns_of
from rollout_plugins.checks.windows import Share

#: Of how many rollouts of a generation the masks are compared with the messages.
_SAMPLE = 32
#: After how many turns the token that usually ends one is known.
_USUAL = 64
_TITLES = {
    "length": ("mask and tokens differ in length", "have a mask that is longer or shorter than their tokens"),
    "trained": ("results of tools are trained", "have results of tools in them, and a mask that trains all tokens"),
    "untrained": (
        "own tokens are not trained",
        "have no message but the model's own, and a mask that leaves some out",
    ),
    "blocks": ("the mask disagrees with the turns", "have another number of masked stretches than of tool results"),
    "shifted": (
        "the mask is off by some tokens",
        "have a mask whose stretches do not begin where the model's turn ends",
    ),
}


class MaskAndRoles(Check):
    """The mask says that the model wrote what a tool wrote, or the other way round, or begins a token too late.

    Training on results of tools teaches the model to invent them. A mask that is off by one trains the template's
    tokens and leaves out an end token.
    """

    name = "mask-and-roles"
    needs = ("tokens",)
    columns = ("completion",)
    advice = "Print ids, mask and decoded text of one of these rollouts side by side around the first tool result."

    def begin(self) -> None:
        self._shares = {kind: Share(chances=16, generations=2) for kind in _TITLES}
        self._before: Counter[int] = Counter()
        self.why = "there was no mask"

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        mask_starts, mask = columns.tokens("mask")
        starts, ids = columns.tokens("completion")
        rows = np.linspace(0, columns.count - 1, min(columns.count, _SAMPLE)).astype(int)
        rows = rows[(np.diff(mask_starts)[rows] > 0) & (np.diff(starts)[rows] > 0)]
        if not len(rows):
            return
        self.observe(len(rows), int(np.diff(starts)[rows].sum()))
        blocks, joints = _boundaries(columns)
        odd: dict[str, list[int]] = {kind: [] for kind in _TITLES}
        chances: Counter[str] = Counter()
        for row in rows.tolist():
            own = mask[mask_starts[row] : mask_starts[row + 1]]
            tokens = ids[starts[row] : starts[row + 1]]
            for kind, is_odd in self._compare(own, tokens, int(blocks[row]), int(joints[row])).items():
                chances[kind] += 1
                if is_odd:
                    odd[kind].append(row)
        for kind, (title, what) in _TITLES.items():
            share = self._shares[kind]
            share.add(step, len(odd[kind]), chances[kind])
            if odd[kind] and share.share >= 0.05 and share.events >= 3:
                yield self.finding(
                    title,
                    f"{share.events} of {share.chances} rollouts {what}, steps {share.since} to {step}",
                    "severe",
                    steps=(share.since, step),
                    rollouts=columns.ids(odd[kind]),
                )

    def _compare(self, mask: Integers, ids: Integers, replies: int, joints: int) -> dict[str, bool]:
        """Return what was compared in one rollout, and whether it disagrees."""
        if len(mask) != len(ids):
            return {"length": True}
        if not replies:
            # Where one answer follows another, and at the end, the template's tokens may stand between.
            return {"length": False, "untrained": joints == 0 and not mask[:-2].all()}
        if mask.all():
            return {"length": False, "trained": True}
        # The first token of each stretch that the model did not write.
        edges: Integers = np.flatnonzero(np.diff(mask) == -1) + 1
        stretches = len(edges) + (mask[0] == 0)
        return {
            "length": False,
            "trained": False,
            # The last result may be cut off with the rollout, and the end of the last turn may be the template's.
            "blocks": not replies - 1 <= stretches <= replies + joints + 1,
            "shifted": self._is_shifted(ids, edges, is_whole=bool(mask[-1]) and len(edges) == replies),
        }

    def _is_shifted(self, ids: Integers, edges: Integers, *, is_whole: bool) -> bool:
        """Return whether a masked span does not start right after the token that ends a model's turn."""
        before = ids[edges - 1].tolist()
        self._before.update(before)
        if not is_whole:
            return False
        # Turns end as the rollout does. If that token stands near an edge instead of in front of it, the mask is off.
        end = int(ids[-1])
        for edge, token in zip(edges.tolist(), before, strict=True):
            near = [*ids[max(edge - 4, 0) : edge - 1].tolist(), *ids[edge : edge + 3].tolist()]
            if token != end and end in near:
                return True
        usual, count = self._before.most_common(1)[0] if self._before else (-1, 0)
        total = self._before.total()
        return total >= _USUAL and count > 0.9 * total and any(token != usual for token in before)


def _boundaries(columns: GenerationColumns) -> tuple[Integers, Integers]:
    """Return how many stretches of replies each completion has, and how often two answers are neighbours."""
    messages = columns.completion
    is_answer, is_same = messages.is_answer, np.diff(messages.owners) == 0
    begins = ~is_answer
    begins[1:] &= is_answer[:-1] | ~is_same
    joined = np.flatnonzero(is_answer[:-1] & is_answer[1:] & is_same)
    return (
        np.bincount(messages.owners[begins], minlength=columns.count),
        np.bincount(messages.owners[joined], minlength=columns.count),
    )
