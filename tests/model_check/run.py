"""Runs random cases in several processes for some minutes, and shows the smallest failing ones."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tests.model_check.generate import random_case
from tests.model_check.oracle import Case, check
from tests.model_check.shrink import described, shrunk

MOST_MARKED = 0.02
"""The share of tables that may end marked though nothing that happened to them excuses it."""

_SHRINK_SECONDS = 60.0


@dataclass(slots=True)
class Tally:
    """What came of many cases."""

    cases: int = 0
    tables: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)
    """The first seed of each kind of failure."""
    unexcused: Counter[str] = field(default_factory=Counter)
    """Marks that nothing excuses, by state and reason."""
    examples: dict[str, int] = field(default_factory=dict)

    def add(self, seed: int) -> str:
        """Checks the case of a seed; the kind of its failure, or nothing."""
        verdict = check(random_case(seed))
        self.cases += 1
        self.tables += verdict.tables
        for mark in verdict.unexcused:
            kind = f"{mark.state}: {mark.reason[:100]}"
            self.unexcused[kind] += 1
            self.examples.setdefault(kind, seed)
        if verdict.problems:
            self.failures[verdict.kind] += 1
            self.first.setdefault(verdict.kind, seed)
        return verdict.kind

    def join(self, other: Tally) -> None:
        self.cases += other.cases
        self.tables += other.tables
        self.failures += other.failures
        self.unexcused += other.unexcused
        self.first = other.first | self.first
        self.examples = other.examples | self.examples

    @property
    def marked(self) -> float:
        """The share of tables that are marked without an excuse."""
        return sum(self.unexcused.values()) / max(1, self.tables)

    @property
    def is_good(self) -> bool:
        return not self.failures and self.marked <= MOST_MARKED


def run_seeds(seeds: Sequence[int]) -> Tally:
    """The cases of these seeds."""
    tally = Tally()
    for seed in seeds:
        tally.add(seed)
    return tally


def _run_until(end: float, seed: int, stride: int) -> Tally:
    """One process: every `stride`-th seed until a time."""
    pa.set_cpu_count(1)
    tally = Tally()
    while time.time() < end:
        failure = tally.add(seed)
        if failure:
            print(f"seed {seed}, after {tally.cases} histories: {failure}", flush=True)
        seed += stride
    return tally


def run(minutes: float, seed: int, processes: int) -> Tally:
    """Random cases for some minutes."""
    end = time.time() + minutes * 60
    total = Tally()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        work = [(end, seed + number, processes) for number in range(processes)]
        for tally in pool.starmap(_run_until, work):
            total.join(tally)
    return total


def show(tally: Tally) -> None:
    """Counts, and what is marked without an excuse."""
    print(
        f"{tally.cases} histories, {tally.tables} tables, {tally.failures.total()} failures, "
        f"{tally.marked:.1%} of the tables marked without an excuse (at most {MOST_MARKED:.0%})"
    )
    for kind, count in tally.failures.most_common():
        print(f"{count:6} {kind} (seed {tally.first[kind]})")
    for kind, count in tally.unexcused.most_common(10):
        print(f"{count:6} marked {kind} (seed {tally.examples[kind]})")


def show_smallest(tally: Tally, most: int, save: Path | None) -> None:
    """The smallest case found for each kind of failure; the first of them is saved."""
    for number, (kind, _) in enumerate(tally.failures.most_common(most)):
        case = shrunk(random_case(tally.first[kind]), _SHRINK_SECONDS)
        print(f"\nseed {tally.first[kind]}: {described(case)}", flush=True)
        if save is not None and number == 0:
            save.write_text(case.to_json(), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """The command line: run, replay."""
    parser = argparse.ArgumentParser(prog="python -m tests.model_check", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="check random cases")
    running.add_argument("--minutes", type=float, default=10)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--processes", type=int, default=2)
    running.add_argument("--show", type=int, default=10, help="kinds of failures to shrink")
    running.add_argument("--save", type=Path, help="where to write the first failing case")
    replaying = commands.add_parser("replay", help="check saved cases, or the cases of seeds")
    replaying.add_argument("cases", nargs="+", help="files, or seeds")
    replaying.add_argument("--shrink", action="store_true")
    replaying.add_argument("--save", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.command == "run":
        tally = run(chosen.minutes, chosen.seed, chosen.processes)
        show(tally)
        show_smallest(tally, chosen.show, chosen.save)
        return 0 if tally.is_good else 1
    return _replay(chosen.cases, shrinks=chosen.shrink, save=chosen.save)


def _replay(names: Sequence[str], *, shrinks: bool, save: Path | None) -> int:
    failed = 0
    for name in names:
        case = _case(name)
        case = shrunk(case, _SHRINK_SECONDS) if shrinks else case
        print(f"{name}: {described(case)}")
        failed += bool(check(case).problems)
        if save is not None:
            save.write_text(case.to_json(), encoding="utf-8")
    return 1 if failed else 0


def _case(name: str) -> Case:
    if name.isdigit():
        return random_case(int(name))
    return Case.from_json(Path(name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
