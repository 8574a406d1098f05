"""Timing two things side by side: the best of several turns, taken in alternation."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of CPU for one turn of ours and one of the peer's, each its best."""

    ours: float
    peer: float

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.peer / self.ours


def best_of(turns: int, ours: Callable[[], object], peer: Callable[[], object]) -> Pair:
    """Alternates the two, so that both see the same machine; collects no garbage meanwhile."""
    best = [float("inf"), float("inf")]
    gc.collect()
    gc.disable()
    try:
        for _ in range(turns):
            for index, call in enumerate((ours, peer)):
                started = time.process_time()
                call()
                best[index] = min(best[index], time.process_time() - started)
    finally:
        gc.enable()
    return Pair(*best)
