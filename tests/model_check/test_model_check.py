"""Random histories through the real gate, planner and mirror: a fixed sample, and saved cases.

`make model-check` runs many more. The last tests check the checker: a mirror with a defect fails.
"""

from pathlib import Path

import pytest

from tests.model_check.generate import random_case
from tests.model_check.oracle import Case, check
from tests.model_check.run import MOST_MARKED, run_seeds
from tests.model_check.shrink import described, shrunk
from tidegate.changefeed.receive.gate import Gate
from tidegate.lake.apply.planner import Planner
from tidegate.lake.job.step import choosing

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))
SEEDS = range(40)
MARKED = {"table_made_and_renamed_late_while_another_took_its_name"}
"""The saved cases in which a table must be marked: what happened cannot be made good."""


def test_tables_equal_the_upstream_at_every_instant_whatever_the_cut():
    tally = run_seeds(SEEDS)
    shown = [described(random_case(seed)) for seed in tally.first.values()]
    assert not tally.failures, "\n\n".join(shown)
    assert tally.marked <= MOST_MARKED, tally.unexcused


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_saved_case_holds(path):
    case = Case.from_json(path.read_text(encoding="utf-8"))
    verdict = check(case)
    assert not verdict.problems, described(case)
    assert bool(verdict.unexcused) == (path.stem in MARKED)


def test_a_seed_always_gives_the_same_case_and_a_case_survives_as_json():
    case = random_case(7)
    assert case == random_case(7)
    assert Case.from_json(case.to_json()) == case


def test_the_sample_has_every_protocol_and_kind_of_statement():
    cases = [random_case(seed) for seed in range(150)]
    feeds = {(case.feed.protocol, case.feed.generation) for case in cases}
    assert {protocol for protocol, _ in feeds} == {"canal-json", "open-protocol", "simple", "craft"}
    assert any(not case.feed.has_watermarks for case in cases)
    assert any(case.feed.topic_per_table for case in cases)
    kinds = {op[0] for case in cases for op in case.ops}
    assert kinds >= {
        *("create", "drop", "recover", "truncate", "rename", "rename_many", "drop_database"),
        *("add_column", "drop_column", "rename_column", "modify_column", "add_key", "drop_key"),
        *("truncate_partition", "drop_partition", "exchange", "create_like", "view", "flashback"),
        "flashback_table",
        *("txn", "mark", "restart", "start", "partitions"),
    }


# --- the checker itself ---------------------------------------------------------------------------


def test_statements_in_the_wrong_order_are_found_and_shrunk(monkeypatch):
    in_order = choosing.in_order
    monkeypatch.setattr(choosing, "in_order", lambda *given, **how: in_order(*given, **how)[::-1])
    seed, verdict = next(
        (seed, verdict) for seed in range(40) if (verdict := check(random_case(seed))).problems
    )
    case = shrunk(random_case(seed), seconds=5)
    assert check(case).kind == verdict.kind
    assert len(case.ops) < len(random_case(seed).ops)


def test_a_gate_that_stands_still_is_found(monkeypatch):
    monkeypatch.setattr(Gate, "_resolve", lambda gate: None)
    assert any(check(random_case(seed)).kind == "the gate stands still" for seed in range(10))


def test_a_mirror_that_stops_every_table_has_too_many_marks(monkeypatch):
    create = Planner._create

    def stopped(self, name, schema, position):
        table = create(self, name, schema, position)
        table.stop("It is too much work.", position.ts)
        return table

    monkeypatch.setattr(Planner, "_create", stopped)
    assert run_seeds(range(5)).marked > MOST_MARKED
