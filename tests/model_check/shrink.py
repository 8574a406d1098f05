"""Makes a failing case small, and tells it as a person would.

Operations, changes of a transaction, settings of the feed and batches are taken away for as long as
the case fails in the same way.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.model_check.history import LOGICAL, START_MS, Commit, Op, RowChange, Signal, played
from tests.model_check.oracle import Case, check
from tests.model_check.sender import Cut, Feed

_TSO = re.compile(r"\b46\d{16}\b")

Fails = Callable[[Case], bool]


def shrunk(case: Case, seconds: float = 60.0) -> Case:
    """The smallest case found in so many seconds that fails as this one does."""
    kind = check(case).kind
    end = time.monotonic() + seconds

    def fails(candidate: Case) -> bool:
        return time.monotonic() < end and check(candidate).kind == kind

    for _ in range(4):
        smaller = _fewer_cuts(case, fails)
        smaller = _fewer_ops(smaller, fails)
        smaller = _fewer_changes(smaller, fails)
        smaller = _plainer_feed(smaller, fails)
        if smaller == case:
            break
        case = smaller
    return case


def _fewer_ops(case: Case, fails: Fails) -> Case:
    size = max(1, len(case.ops) // 2)
    while size:
        start = 0
        while start < len(case.ops):
            candidate = replace(case, ops=(*case.ops[:start], *case.ops[start + size :]))
            if fails(candidate):
                case = candidate
            else:
                start += size
        size //= 2
    return case


def _fewer_changes(case: Case, fails: Fails) -> Case:
    for place, op in enumerate(case.ops):
        changes = op[1] if op[0] == "txn" else []
        for change in list(changes):
            fewer = [each for each in changes if each is not change]
            candidate = _with_op(case, place, ["txn", fewer])
            if fewer and fails(candidate):
                case, changes = candidate, fewer
    return case


def _with_op(case: Case, place: int, op: Op) -> Case:
    return replace(case, ops=(*case.ops[:place], op, *case.ops[place + 1 :]))


def _fewer_cuts(case: Case, fails: Fails) -> Case:
    for cut in case.cuts:
        if len(case.cuts) > 1 and fails(replace(case, cuts=(cut,))):
            case = replace(case, cuts=(cut,))
    for place, cut in enumerate(case.cuts):
        for plainer in _plainer_cuts(cut):
            cuts = (*case.cuts[:place], plainer, *case.cuts[place + 1 :])
            if fails(replace(case, cuts=cuts)):
                case = replace(case, cuts=cuts)
                break
    return case


def _plainer_cuts(cut: Cut) -> Iterator[Cut]:
    """From the plainest: one batch, one for each message, then this one with less."""
    found = [Cut(), Cut(0), replace(cut, skew=False, restarts=False), replace(cut, crashes=0)]
    found += [replace(cut, restarts=False), replace(cut, skew=False)]
    yield from (each for each in found if each != cut)


def _plainer_feed(case: Case, fails: Fails) -> Case:
    for option in list(case.feed.options):
        options = {name: value for name, value in case.feed.options.items() if name != option}
        case = _with_feed(case, replace(case.feed, options=options), fails)
    extended = {"enable_tidb_extension": True}
    changes: list[dict[str, Any]] = [
        {"late_topics": False},
        {"topic_per_table": False, "late_topics": False},
        {"dispatch": "default"},
        {"partitions": 2},
        {"partitions": 1},
        *([] if any(map(_is_swap, case.ops)) else [{"generation": "classic"}]),
        {"protocol": "canal-json", "options": extended},
    ]
    for change in changes:
        if case.feed.partitions > change.get("partitions", 0):
            case = _with_feed(case, replace(case.feed, **change), fails)
    return case


def _is_swap(op: Op) -> bool:
    """Whether only the new architecture sends it."""
    return op[0] == "rename_many" and not op[2:]


def _with_feed(case: Case, feed: Feed, fails: Fails) -> Case:
    candidate = replace(case, feed=feed)
    return candidate if fails(candidate) else case


# --- for people -----------------------------------------------------------------------------------


def described(case: Case) -> str:
    """The case and its problems, with commit_ts as @1, @2, …"""
    feed, verdict = case.feed, check(case)
    lines = [
        f"{feed.protocol} ({feed.generation}) {feed.options or ''} partitions={feed.partitions} "
        f"dispatch={feed.dispatch}{' topic per table' if feed.topic_per_table else ''}"
        f"{' late topics' if feed.late_topics else ''}",
        *(f"  {cut}" for cut in case.cuts),
    ]
    for entry in played(case.ops).commits:
        lines += [f"  {line}" for line in _entry_lines(entry, feed)]
    lines += [f"  → {problem}" for problem in verdict.problems[:3]]
    lines += [f"  marked: {mark}" for mark in verdict.marks]
    return _TSO.sub(_short_ts, "\n".join(lines))


def _entry_lines(entry: Commit | Signal, feed: Feed) -> Iterator[str]:
    if isinstance(entry, Signal):
        yield f"-- {' '.join(map(str, entry.op))}"
        return
    for row in entry.rows:
        yield f"{entry.ts} {_row_line(row)}"
    for ddl in entry.classic if feed.generation == "classic" else entry.new:
        table = "" if ddl.after is None else ddl.after.table
        yield f"{entry.ts} {ddl.query}   [{ddl.database}.{table}]"


def _row_line(row: RowChange) -> str:
    sides = " → ".join(str(side) for side in (row.before, row.after) if side is not None)
    return f"{row.kind} {row.table.database}.{row.table.name} {sides}"


def _short_ts(match: re.Match[str]) -> str:
    ts = int(match[0])
    number, rest = ((ts >> LOGICAL) - START_MS) / 2, (ts & ((1 << LOGICAL) - 1)) - 1
    return f"@{number:g}" + (f"+{rest}" if rest else "")
