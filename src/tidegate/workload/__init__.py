"""Upstreams that make changes: deterministic by seed, any size, and they know what is true.

    from tidegate.workload import workload

    bank = workload("bank", rows=100_000, seed=7)
    for batch in bank.batches():
        ...
    bank.final().tables["bank", "accounts"].rows

A workload is a database that exists only as a rule: the same name, rows, seed and options give the
same changes on every machine. See docs/workloads.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tidegate.model import ConfigError
from tidegate.workload.bank import Bank
from tidegate.workload.clock import DEFAULT_RATE
from tidegate.workload.orders import Orders
from tidegate.workload.truth import Truth, TruthTable, Workload


def _sysbench(
    rows: int, seed: int, *, rate: int = DEFAULT_RATE, keys: int = 100_000, tables: int = 1
) -> Workload:
    """The one workload that needs numpy."""
    try:
        from tidegate.workload.sysbench import Sysbench
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise ConfigError(
            "workload", "is 'sysbench', which needs numpy: pip install 'tidegate[workload]'"
        ) from error
    return Sysbench(rows, seed, rate=rate, keys=keys, tables=tables)


WORKLOADS: dict[str, Callable[..., Workload]] = {
    "bank": Bank,
    "orders": Orders,
    "sysbench": _sysbench,
}
"""What makes each workload, by name."""

DEFAULT_ROWS = 10_000


def workload(name: str, *, rows: int = DEFAULT_ROWS, seed: int = 0, **options: Any) -> Workload:
    """The workload of this name with `rows` row changes; or ConfigError."""
    make = WORKLOADS.get(name)
    if make is None:
        raise ConfigError("workload", f"is {name!r}, but must be one of {', '.join(WORKLOADS)}")
    known = options_of(name)
    for option in options:
        if option not in known:
            raise ConfigError(option, f"is no option of {name}, which has {', '.join(known)}")
    for setting, least, value in (("rows", 0, rows), *((key, 1, options[key]) for key in options)):
        if value < least:
            raise ConfigError(setting, f"is {value}, but must be at least {least}")
    return make(rows=rows, seed=seed, **options)


def options_of(name: str) -> dict[str, int]:
    """The options of a workload beside rows and seed, with their defaults; all whole numbers."""
    parameters = inspect.signature(WORKLOADS[name]).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.name not in ("rows", "seed")
    }


__all__ = [
    "Workload",
    "workload",
    "WORKLOADS",
    "options_of",
    "DEFAULT_ROWS",
    "Bank",
    "Orders",
    "Truth",
    "TruthTable",
]
