"""Whole feeds, replayed: three partitions, rows sent again, broadcast DDL, through gate and order.

After every watermark the tables are those of the source at that instant, and in the end what SELECT
showed there. Values need no rounding to compare: texts of floats, JSON and dates are the source's
own; `selected` only writes enum, set and bit values as SELECT does. Not compared are

- virtual generated columns, which no feed carries;
- FLOAT columns of Craft, whose bytes TiCDC itself spoils;
- the four tables of `ddl` that EXCHANGE PARTITION, RECOVER and FLASHBACK TABLE stop.
"""

from functools import cache
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import corpus, truth
from tests.support.decoding import decode_variant, require
from tests.support.mirror import Mirror
from tests.support.playing import PARTITIONS, REPEATS, RESTARTS, Log, play, quietly
from tests.support.table_model import TableModel, by_text, selected
from tidegate.changefeed.receive.gate import Gate
from tidegate.model.types import MySQLType

STOPPED = {("d1", "p1"), ("d1", "ex"), ("d2", "x"), ("d1", "rec2")}
STREAMS = [variant for variant in corpus.variants() if variant.stream]
EVENTUAL = [variant for variant in STREAMS if variant.protocol == "canal" and not variant.options]
SNAPSHOT = [variant for variant in STREAMS if variant not in EVENTUAL]


def name_of(variant):
    return variant.name


# --- the truth ------------------------------------------------------------------------------------


@cache
def history(scenario):
    """The events of a scenario: commit_ts, kind, table, and the row or statement."""
    found = []
    for event in truth.events(scenario):
        name = (event.database or "", event.table or "")
        if event.kind == "ddl":
            found.append((event.commit_ts, "ddl", name, event.query))
        elif event.kind == "delete":
            found.append((event.commit_ts, "delete", name, truth.mapping(event.before)))
        elif event.kind in truth.ROWS:
            found.append((event.commit_ts, "put", name, truth.mapping(event.after)))
    return found


class Source:
    """The tables of the source, moved on from instant to instant."""

    def __init__(self, scenario):
        self.model = TableModel()
        self._events = history(scenario)
        self._next = 0

    def at(self, ts):
        while self._next < len(self._events) and self._events[self._next][0] <= ts:
            _, kind, name, what = self._events[self._next]
            if kind == "ddl":
                self.model.run(what, name[0])
            elif kind == "delete":
                self.model.take(name, what)
            else:
                self.model.put(name, what)
            self._next += 1
        return self.model


def comparable(model, *, floats):
    """The rows of every table; without FLOAT columns unless `floats`."""
    if floats:
        return model.state()
    found = {}
    for name, table in model.tables.items():
        kept = [c.name for c in table.schema.columns if c.code != MySQLType.FLOAT]
        found[name] = {
            key: {column: row[column] for column in kept if column in row}
            for key, row in table.rows.items()
        }
    return found


class Checked:
    """Compares each instant of a mirror with the source."""

    def __init__(self, variant):
        self.instants = []
        self._source = Source(variant.truth)
        self._floats = variant.protocol != "craft"

    def __call__(self, ts, model):
        expected = comparable(self._source.at(ts), floats=self._floats)
        actual = comparable(model, floats=self._floats)
        if expected != actual:
            wrong = [name for name in expected | actual if expected.get(name) != actual.get(name)]
            pytest.fail(f"at {ts} the tables {wrong} are not those of the source")
        self.instants.append(ts)


def differences(model, scenario, *, floats=True):
    """The tables that are not as SELECT showed them in the end."""
    final = {(told["schema"], told["table"]): told for told in corpus.final(scenario)["tables"]}
    wrong = set(final) ^ (set(model.tables) | model.stopped)
    for name, table in model.tables.items():
        columns = final[name]["columns"]
        skipped = {c.name for c in table.schema.columns if c.generated == "virtual"}
        if not floats:
            skipped |= {c.name for c in table.schema.columns if c.code == MySQLType.FLOAT}
        places = [place for place, column in enumerate(columns) if column["n"] not in skipped]
        rows = [[row[place] for place in places] for row in final[name]["rows"]]
        if sorted(rows, key=by_text) != selected(table, [columns[place] for place in places]):
            wrong.add(name)
    return wrong


@pytest.mark.parametrize("scenario", ["bank", "ddl", "mixed1", "new/bank", "new/ddl"])
def test_the_model_itself_comes_to_what_select_showed(scenario):
    model = Source(scenario).at(2**63)
    assert differences(model, scenario) == set()
    assert model.stopped == (STOPPED if scenario.endswith("ddl") else set())


# --- feeds ----------------------------------------------------------------------------------------


@cache
def decoded(name):
    variant = corpus.variant(name)
    require(variant.protocol)
    (batch,) = decode_variant(variant, corpus.messages(name))
    return pa.Table.from_batches([batch])


def chunks(table):
    """The table cut behind every watermark."""
    found = pc.indices_nonzero(pc.equal(table["kind"], "watermark")).to_pylist()
    bounds = [0, *(place + 1 for place in found), table.num_rows]
    return [table.slice(a, b - a) for a, b in pairwise(bounds) if b > a]


@pytest.mark.parametrize("variant", SNAPSHOT, ids=name_of)
def test_after_every_watermark_the_tables_are_those_of_the_source(variant):
    checked = Checked(variant)
    mirror = Mirror(Gate(PARTITIONS), on_state=checked)
    for chunk in chunks(decoded(variant.name)):
        mirror.read(chunk)
    assert checked.instants == sorted(set(marks(variant.name)))
    assert mirror.is_done()
    assert differences(mirror.model, variant.truth, floats=variant.protocol != "craft") == set()


def test_a_rename_swap_between_watermarks_shows_the_rows_of_both_tables():
    mirror = Mirror(Gate([("", 0)]))
    for chunk in chunks(decoded("new/x_renameswap.simple.json")):
        mirror.read(chunk)
    assert mirror.is_done()
    assert differences(mirror.model, "new/x_renameswap") == set()


@pytest.mark.parametrize("variant", EVENTUAL, ids=name_of)
def test_a_feed_without_watermarks_comes_to_the_same_in_the_end(variant):
    mirror = Mirror(Gate(PARTITIONS, watermarks=False))
    mirror.read(decoded(variant.name))
    assert mirror.gate.consistency == "eventual"
    assert differences(mirror.model, variant.truth) == set()


def marks(name):
    table = decoded(name)
    return table.filter(pc.equal(table["kind"], "watermark"))["commit_ts"].to_pylist()


# --- any order, any repetition, any restart -------------------------------------------------------


@cache
def log(name):
    return Log(decoded(name))


PLAYED = {
    "ddl.open.b16.stream": 5,
    "ddl.canal.ext.stream": 5,
    "bank.open.b1.stream": 2,
    "bank.craft.b16.stream": 2,
}


@pytest.mark.parametrize("name", PLAYED)
def test_any_interleaving_repetition_and_restart_shows_the_same_instants(name):
    variant = corpus.variant(name)
    decoded(name)
    last = max(marks(name))

    @quietly(PLAYED[name])
    @given(seed=st.integers(0, 2**32), repeats=REPEATS, restarts=RESTARTS)
    def check(seed, repeats, restarts):
        checked = Checked(variant)
        mirror = play(log(name), checked, seed, repeats, restarts)
        instants = checked.instants
        assert instants == sorted(set(instants))
        assert instants[-1] == last
        assert mirror.is_done()
        floats = variant.protocol != "craft"
        assert differences(mirror.model, variant.truth, floats=floats) == set()

    check()
