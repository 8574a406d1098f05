"""Workloads: what they send, applied by a consumer of its own, is what they say is true."""

from functools import cache
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.mirror import Mirror
from tests.support.table_model import state_of
from tidegate.changefeed.receive.gate import Gate
from tidegate.model import ConfigError
from tidegate.model.tso import physical_ms
from tidegate.wire import CHANGE_SCHEMA, EventReader
from tidegate.workload import WORKLOADS, options_of, workload

ROWS = ["insert", "update", "delete"]
OPTIONS = {"bank": {"accounts": 50}, "orders": {}, "sysbench": {"keys": 300, "tables": 2}}


@cache
def made(name, rows=3000, seed=1, rate=400):
    return workload(name, rows=rows, seed=seed, rate=rate, **OPTIONS[name])


@cache
def sent(name, rows=3000, seed=1, rate=400):
    return pa.Table.from_batches(made(name, rows, seed, rate).batches())


class Consumer(Mirror):
    """A mirror that takes updates of keys as they are; a changefeed would have split them."""

    def _rows(self, table):
        for batch in table.combine_chunks().to_batches():
            for event in EventReader(self.cache.shapes).events(batch):
                name, kind = (event.database, event.table), type(event).__name__
                if kind == "Delete":
                    self.model.take(name, event.before)
                else:
                    self.model.put(name, event.after, event.before if kind == "Update" else None)


def row_changes(table):
    return table.filter(pc.is_in(table["kind"], pa.array(ROWS)))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_consumer_comes_to_the_truth_at_every_watermark_and_in_the_end(name):
    source = made(name)
    instants = []

    def compare(ts, model):
        truth = source.at(ts)
        assert model.state() == state_of(truth), ts
        for table, told in truth.tables.items():
            schema = model.tables[table].schema
            assert schema.columns == told.schema.columns
            assert schema.own_indexes == told.schema.own_indexes
        instants.append(ts)

    mirror = Consumer(Gate(), on_state=compare)
    table = sent(name)
    marks = pc.indices_nonzero(pc.equal(table["kind"], "watermark")).to_pylist()
    for start, end in pairwise([0, *(place + 1 for place in marks)]):
        mirror.read(table.slice(start, end - start))
    assert len(instants) == len(marks) >= 7
    assert marks[-1] == table.num_rows - 1
    assert mirror.is_done()
    assert mirror.model.state() == state_of(source.final())


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_a_row_was_before_is_what_it_was(name):
    known = {}
    changes = row_changes(sent(name)).to_pylist()
    plan = {
        row["commit_ts"]: row["table"]
        for row in sent(name).to_pylist()
        if row["kind"] == "ddl" and row["table"]
    }
    reader = EventReader()
    for event in reader.events(pa.concat_batches(sent(name).to_batches())):
        kind = type(event).__name__
        if kind == "Ddl":
            # A statement may change what rows hold: begin anew for its table.
            known = {key: row for key, row in known.items() if key[0] != plan.get(event.commit_ts)}
        elif kind in ("Insert", "Update", "Delete"):
            if kind != "Insert":
                key = (event.table, *(event.before[name] for name in event.keys))
                assert known.pop(key, event.before) == event.before
            if kind != "Delete":
                key = (event.table, *(event.after[name] for name in event.keys))
                assert key not in known
                known[key] = event.after
    assert len(changes) == 3000


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_changes_and_another_one_others(name):
    again = pa.Table.from_batches(
        workload(name, rows=3000, seed=1, rate=400, **OPTIONS[name]).batches()
    )
    assert again.equals(sent(name))
    other = sent(name, seed=2)
    assert not other["after"].equals(again["after"])


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 17, 100, 10_001])
def test_there_are_as_many_row_changes_as_asked_for(name, rows):
    table = sent(name, rows=rows)
    assert row_changes(table).num_rows == rows
    assert table["kind"][-1].as_py() == "watermark"


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_batch_stands_by_itself(name):
    source = workload(name, rows=25_000, seed=3, **OPTIONS[name])
    batches = list(source.batches())
    assert len(batches) >= 3
    for batch in batches:
        assert batch.schema.equals(CHANGE_SCHEMA)
        batch.validate(full=True)
        assert batch.num_rows < 11_000
        is_shape = pc.equal(batch["event"], -1)
        shapes = batch.filter(is_shape)["shape"].to_pylist()
        rows = batch.filter(pc.is_in(batch["kind"], pa.array(ROWS)))
        assert set(rows["shape"].to_pylist()) <= set(shapes)
        assert len(shapes) == len(set(shapes))
        assert None not in rows["schema_version"].to_pylist()
        assert is_shape.to_pylist() == sorted(is_shape.to_pylist(), reverse=True)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("rate", [7, 400, 300_000])
def test_commits_are_in_order_and_every_second_has_its_watermark(name, rate):
    table = sent(name, rows=2000, rate=rate)
    times = [row for row in table.select(["kind", "commit_ts"]).to_pylist() if row["commit_ts"]]
    last, marks = 0, []
    for row in times:
        if row["kind"] == "watermark":
            assert row["commit_ts"] > last
            marks.append(physical_ms(row["commit_ts"]))
        else:
            assert row["commit_ts"] >= last
        last = row["commit_ts"]
    assert {after - before for before, after in pairwise(marks)} <= {1000}
    assert abs(len(marks) - 2000 / rate) < 2


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_transaction_changes_a_row_once_and_has_several_rows_now_and_then(name):
    changes = {}
    for event in EventReader().events(pa.concat_batches(sent(name).to_batches())):
        if type(event).__name__ in ("Insert", "Update", "Delete"):
            keys = changes.setdefault(event.commit_ts, [])
            for side in (event.before, event.after):
                if side:
                    keys.append((event.table, *(side[name] for name in event.keys)))
            if event.before and event.after and keys[-1] == keys[-2]:
                keys.pop()
    assert all(len(keys) == len(set(keys)) for keys in changes.values())
    assert 1.2 < 3000 / len(changes) < 4


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_truth_holds_between_transactions_too(name):
    source = made(name)
    table = sent(name)
    commits = sorted({ts for ts in table["commit_ts"].to_pylist() if ts})
    for ts, following in list(pairwise(commits))[:: len(commits) // 5]:
        assert source.at(ts) == source.at(following - 1)
    assert source.at(0).tables == {}
    assert source.at(commits[-1]) == source.final()


# --- each of them ---------------------------------------------------------------------------------


def test_the_bank_has_the_same_sum_at_every_commit():
    cents = {}
    sums = {}
    table = sent("bank", rows=20_000)
    for row in row_changes(table).to_pylist():
        if row["table"] == "accounts":
            if row["after"] is None:
                del cents[row["before"][0]]
            else:
                cents[row["after"][0]] = int(row["after"][3].replace(".", ""))
        sums[row["commit_ts"]] = sum(cents.values())
    assert set(sums.values()) == {100_000_000_000}
    kinds = {(row["table"], row["kind"]) for row in row_changes(table).to_pylist()}
    assert {("accounts", kind) for kind in ROWS} <= kinds


def test_old_transfers_are_deleted(monkeypatch):
    monkeypatch.setattr("tidegate.workload.bank.KEPT_TRANSFERS", 20)
    source = workload("bank", rows=500, seed=1)
    assert len(source.final().tables["bank", "transfers"].rows) == 20
    assert row_changes(pa.Table.from_batches(source.batches())).num_rows == 500


def test_the_foreign_keys_of_orders_hold_after_every_second():
    source = made("orders")
    table = sent("orders")
    marks = table.filter(pc.equal(table["kind"], "watermark"))["commit_ts"].to_pylist()
    for ts in marks:
        found = state_of(source.at(ts))
        shop = {name: list(rows.values()) for (_, name), rows in found.items()}
        customers = {row["id"] for row in shop["customers"]}
        orders = {row["id"] for row in shop["orders"]}
        skus = {row["sku"] for row in shop["products"]}
        assert {row["customer_id"] for row in shop["orders"]} <= customers
        assert {row["order_id"] for row in shop["order_items"]} == orders
        assert {row["sku"] for row in shop["order_items"]} <= skus
        assert {row["sku"] for row in shop.get("reviews", [])} <= skus
        emails = [row["email"] for row in shop["customers"]]
        assert len(emails) == len(set(emails))


def test_orders_has_every_type_and_every_kind_of_statement():
    table = sent("orders", rows=10_000)
    truth = made("orders", rows=10_000).final()
    everything = truth.tables["shop", "everything"]
    bases = {column.base_type for column in everything.schema.columns}
    assert bases == {
        *("tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "decimal", "bit"),
        *("year", "date", "datetime", "timestamp", "time", "json", "vector", "enum", "set"),
        *("char", "varchar", "tinytext", "text", "mediumtext", "longtext"),
        *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"),
    }
    columns = list(zip(*everything.rows.values(), strict=True))
    assert all(None in column for column in columns[1:])
    assert all(len(set(column)) > 2 for column in columns[:-1])
    ddl = [row["ddl"] for row in table.to_pylist() if row["kind"] == "ddl"]
    words = {entry["type"] for entry in ddl}
    assert words == {"QUERY", "CREATE", "ALTER", "CINDEX", "DINDEX", "TRUNCATE", "RENAME", "ERASE"}
    kinds = {(row["table"], row["kind"]) for row in row_changes(table).to_pylist()}
    names = {"customers", "products", "orders", "order_items", "coupons", "everything"}
    assert {name for name, kind in kinds} == names | {"audit_log", "audit_archive", "reviews"}
    assert {
        (name, "delete") for name in ("orders", "order_items", "coupons", "everything")
    } <= kinds


def test_keys_and_unique_columns_change_in_orders():
    moved = set()
    for event in EventReader().events(pa.concat_batches(sent("orders").to_batches())):
        if type(event).__name__ == "Update":
            moved |= {
                (event.table, name)
                for name in (*event.keys, "email")
                if event.before.get(name) != event.after.get(name)
            }
    assert moved == {("order_items", "line"), ("coupons", "code"), ("customers", "email")}


def test_sysbench_has_twenty_columns_hot_keys_and_all_kinds_of_changes():
    source = workload("sysbench", rows=50_000, seed=5)
    table = row_changes(pa.Table.from_batches(source.batches()))
    assert set(pc.list_value_length(table["after"]).drop_null().to_pylist()) == {20}
    counts = {row["values"]: row["counts"] for row in table["kind"].value_counts().to_pylist()}
    assert min(counts.values()) > 1000
    keys = pc.list_element(pc.coalesce(table["after"], table["before"]), 0)
    most = max(row["counts"] for row in keys.value_counts().to_pylist())
    assert most > 500


# --- what is asked for in vain --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("shop", {}, "must be one of bank, orders, sysbench"),
        ("bank", {"keys": 5}, "is no option of bank, which has rate, accounts"),
        ("bank", {"rows": -1}, "must be at least 0"),
        ("sysbench", {"tables": 0}, "must be at least 1"),
    ],
)
def test_what_is_wrong_is_said(name, options, reason):
    with pytest.raises(ConfigError, match=reason):
        workload(name, **options)


def test_the_options_of_each():
    assert options_of("sysbench") == {"rate": 2000, "keys": 100_000, "tables": 1}
    assert set(options_of("orders")) == {"rate", "live"}
