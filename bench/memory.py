"""The memory that decoding a batch takes, beside the bytes that went in.

Each measurement is a process of its own: what an earlier batch left behind would hide what this one
takes.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.wire import CASES, SCENARIOS, arrow_of, repeated
from tests.support import corpus
from tidegate.wire import decode_batch

MOST_TIMES_INPUT = 4


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _measure(label: str, scenario: str) -> dict[str, Any]:
    """How much the resident set grew at most while one batch was decoded (Linux)."""
    case = next(case for case in CASES if case.label == label)
    arrow = arrow_of(repeated(corpus.messages(f"{scenario}.{case.file}")))
    # A few messages first, for what is loaded once; then memory that was freed is given back.
    head = None if arrow.keys is None else arrow.keys[:10]
    decode_batch(case.protocol, head, arrow.values[:10])
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = _status("VmRSS")
    batch = decode_batch(case.protocol, arrow.keys, arrow.values)
    peak = _status("VmHWM") - before
    return {
        "protocol": label,
        "scenario": scenario,
        "input_bytes": arrow.size,
        "output_bytes": batch.nbytes,
        "peak_bytes": peak,
        "times_input": round(peak / arrow.size, 2),
    }


def run() -> list[dict[str, Any]]:
    """Peak growth as a multiple of the input, for each protocol; empty where it cannot be known."""
    if not Path("/proc/self/clear_refs").exists():
        return []
    results = []
    for case in CASES:
        for scenario in SCENARIOS:
            command = [sys.executable, "-m", "bench.memory", case.label, scenario]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append(json.loads(done.stdout))
    return results


if __name__ == "__main__":
    print(json.dumps(_measure(*sys.argv[1:])))
