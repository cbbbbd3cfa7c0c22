"""Log-probabilities of the sampler that are not those of the trainer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding, Severity

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Flags, Floats, GenerationColumns, columns_of

#: How many tokens and generations a judgement needs.
_TOKENS, _GENERATIONS = 1500, 3
#: Bounds that are in use elsewhere: the mean |difference| of a healthy run is about 0.01.
_MEAN, _LARGE, _WEIGHT, _SAMPLE_SIZE = 0.04, 0.15, (0.5, 2.0), 0.3
_MOST = 65_536


@dataclass
class _Gap:
    """The differences of one generation."""

    step: int
    tokens: int
    size: float
    weight: float
    squares: float
    capped: float
    positive: float
    lag: float


class SamplerMismatch(Check):
    """The sampler is not the policy: it gives its tokens other probabilities than the trainer does.

    Some difference is normal, since engines compute in other precision: 0.01 on average. A larger one makes the
    gradient wrong, and the finding names what it looks like: another temperature, probabilities renormalised by top_p
    or top_k, weights that no longer reach the engine (the gap grows with the step), or one class of tokens.
    """

    name = "sampler-mismatch"
    needs = ("logprobs", "trainer_logprobs")
    columns = ("step", "policy_step")
    advice = (
        "Compare both log-probabilities of one completion at step 0; check temperature, top_p, dtype, weight sync."
    )

    def begin(self) -> None:
        self._gaps: deque[_Gap] = deque(maxlen=400)
        self._latest: deque[tuple[Floats, Floats]] = deque(maxlen=_GENERATIONS)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        pairs = self._aligned(columns)
        if pairs is None:
            return
        sampler, trainer, is_end = pairs
        self.observe(columns.count, len(sampler))
        difference = np.clip(trainer - sampler, -20, 20)
        weights = np.exp(np.minimum(difference, 10))
        lag = np.asarray(columns.array("step"), float) - columns.array("policy_step").to_numpy(zero_copy_only=False)
        self._gaps.append(
            _Gap(
                step,
                len(sampler),
                float(np.abs(difference).mean()),
                float(weights.mean()),
                float((weights**2).mean()),
                float((weights > 2).mean()),
                float((difference > 1e-3).mean()),
                float(np.nanmean(lag)) if not np.isnan(lag).all() else 0.0,
            )
        )
        self._latest.append((sampler, trainer))
        recent = list(self._gaps)[-_GENERATIONS:]
        if len(self._gaps) < _GENERATIONS or sum(gap.tokens for gap in self._gaps) < _TOKENS:
            return
        yield from self._judge(recent, step, columns, difference, is_end)

    def _aligned(self, columns: GenerationColumns) -> tuple[Floats, Floats, Flags] | None:
        """Return the sampler's and the trainer's values of the model's own tokens, and which of them end an answer."""
        sampler_starts, sampler = columns.tokens("logprobs")
        trainer_starts, trainer = columns.tokens("trainer_logprobs")
        mask_starts, mask = columns.tokens("mask")
        sizes = np.diff(sampler_starts)
        fits = (sizes == np.diff(trainer_starts)) & (sizes > 0)
        if not fits.any():
            self.why = "the two lists of log-probabilities never have the same length"
            return None
        if not (fits | (sizes == 0)).all() or not (np.diff(trainer_starts) == sizes).all():
            keep_sampler: Flags = np.repeat(fits, sizes)
            keep_trainer: Flags = np.repeat(fits, np.diff(trainer_starts))
            mask = (
                mask[np.repeat(fits, np.diff(mask_starts))]
                if (np.diff(mask_starts)[fits] == sizes[fits]).all()
                else mask[:0]
            )
            sampler, trainer = sampler[keep_sampler], trainer[keep_trainer]
        is_end: Flags = np.zeros(len(sampler), bool)
        is_end[np.cumsum(sizes[fits]) - 1] = True
        use = np.isfinite(sampler) & np.isfinite(trainer)
        if len(mask) == len(sampler):
            use &= mask == 1
        if len(sampler) > _MOST:
            use[_MOST:] = False
        if not use.any():
            return None
        return sampler[use], trainer[use], is_end[use]

    def _judge(
        self, recent: list[_Gap], step: int, columns: GenerationColumns, difference: Floats, is_end: Flags
    ) -> Iterator[Finding]:
        tokens = sum(gap.tokens for gap in recent)
        size, weight, squares, capped, positive = (
            sum(getattr(gap, name) * gap.tokens for gap in recent) / tokens
            for name in ("size", "weight", "squares", "capped", "positive")
        )
        effective = weight**2 / squares
        first = list(self._gaps)[:_GENERATIONS]
        first_size = sum(gap.size for gap in first) / len(first)
        numbers = (
            f"mean |difference| {size:.3f}, mean weight {weight:.2f}, effective sample size {effective:.0%}, "
            f"{capped:.1%} of "
            f"the tokens above 2, steps {recent[0].step} to {step}"
        )
        lag = np.mean([gap.lag for gap in recent])
        if len(self._gaps) >= 2 * _GENERATIONS and self._grows(first_size, size):
            old = f"; the weights are {lag:.0f} steps old" if lag >= 2 else ""
            yield self._report(
                "the sampler drifts away from the trainer", f"mean |difference| {first_size:.3f} → {size:.3f}; "
                f"{numbers}{old}",
                "severe" if size > 0.1 else "warning", (first[0].step, step), columns,
            )  # fmt: skip
            return
        if size < _MEAN and 1 / 1.03 < weight < 1.03 and effective > _SAMPLE_SIZE:
            yield from self._look_at_ends(difference, is_end, step, columns)
            return
        cause = self._cause(size, weight, positive)
        if (
            not cause
            and size < 3 * _MEAN
            and effective > _SAMPLE_SIZE
            and _WEIGHT[0] < weight < _WEIGHT[1]
            and lag >= 2
        ):
            return  # older weights explain a gap of this size
        severe = size > _LARGE or effective < _SAMPLE_SIZE or not _WEIGHT[0] < weight < _WEIGHT[1]
        yield self._report(
            "the sampler is not the policy",
            numbers + cause,
            "severe" if severe else "warning",
            (recent[0].step, step),
            columns,
        )

    def _grows(self, first: float, size: float) -> bool:
        """Return whether the gap has grown steadily, and not by a single outlier."""
        sizes = np.array([gap.size for gap in self._gaps])
        if size < 3 * max(first, 0.004) or size < 0.025:
            return False
        ranks = np.argsort(np.argsort(sizes))
        return bool(np.corrcoef(ranks, np.arange(len(sizes)))[0, 1] > 0.7)

    def _cause(self, size: float, weight: float, positive: float) -> str:
        sampler = np.concatenate([sampler for sampler, _ in self._latest])
        trainer = np.concatenate([trainer for _, trainer in self._latest])
        if positive < 0.02 and weight < 0.99:
            return f"; the sampler's are never lower, as with top_p or top_k (kept mass {weight:.2f})"
        difference = trainer - sampler
        unsure = sampler < -0.05
        if unsure.sum() > 200 and size > 0.03:
            fit = np.corrcoef(difference[unsure], sampler[unsure])[0, 1]
            if abs(fit) > 0.6:
                slope = float((trainer[unsure] * sampler[unsure]).sum() / (sampler[unsure] ** 2).sum())
                return f"; the gap follows the log-probability (factor {slope:.2f}), as with another temperature"
        return ""

    def _look_at_ends(
        self, difference: Floats, is_end: Flags, step: int, columns: GenerationColumns
    ) -> Iterator[Finding]:
        if is_end.sum() < 8:
            return
        ends, rest = float(np.median(np.abs(difference[is_end]))), float(np.abs(difference[~is_end]).mean())
        if ends > 0.3 and ends > 10 * max(rest, 0.01):
            yield self._report(
                "the end token's probabilities differ", f"mean |difference| {ends:.2f} at the last token of an "
                f"answer, and {rest:.3f} at the others, step {step}", "warning", (step, step), columns,
            )  # fmt: skip

    def _report(
        self, title: str, text: str, severity: Severity, steps: tuple[int, int], columns: GenerationColumns
    ) -> Finding:
        return self.finding(title, text, severity, steps=steps, rollouts=columns.ids(np.arange(columns.count)))
