"""The memory that decoding a batch takes, beside the bytes that went in."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.wire import CASES, SCENARIOS, arrow_of, repeated
from tests.support import corpus
from tidegate.wire import decode_batch


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def peak_of_decoding(protocol: str, keys: pa.Array | None, values: pa.Array) -> int:
    """How much the resident set grew at most while the batch was decoded (Linux)."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)  # gives freed memory back, so that it counts when taken again
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = _status("VmRSS")
    batch = decode_batch(protocol, keys, values)
    peak = _status("VmHWM")
    del batch
    return peak - before


def run() -> list[dict[str, Any]]:
    """Peak growth as a multiple of the input, for each protocol; empty where it cannot be known."""
    if not os.path.exists("/proc/self/clear_refs"):
        return []
    results = []
    for case in CASES:
        for scenario in SCENARIOS:
            arrow = arrow_of(repeated(corpus.messages(f"{scenario}.{case.file}")))
            # A few messages first, for what is loaded once; the rest must take fresh memory.
            head = None if arrow.keys is None else arrow.keys[:10]
            decode_batch(case.protocol, head, arrow.values[:10])
            peak = peak_of_decoding(case.protocol, arrow.keys, arrow.values)
            results.append(
                {
                    "protocol": case.label,
                    "scenario": scenario,
                    "input_bytes": arrow.size,
                    "peak_bytes": peak,
                    "times_input": round(peak / arrow.size, 2),
                }
            )
    return results
