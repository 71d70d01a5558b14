"""Compares protected with unprotected stretches of steps, and computes a confidence interval of the result."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

RESAMPLES = 5000


def neighbour_ratios(protected: Sequence[bool], per_step: Sequence[float]) -> list[float]:
    """Divides each protected stretch by the mean of its unprotected neighbours, so that a slow drift cancels out."""
    found = []
    for index, value in enumerate(per_step):
        beside = [per_step[i] for i in (index - 1, index + 1) if 0 <= i < len(per_step) and not protected[i]]
        if protected[index] and beside:
            found.append(value / statistics.mean(beside))
    return found


def interval_95(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Returns the 95 % confidence interval of the median, by bootstrap."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]
