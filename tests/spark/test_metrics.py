"""What is counted while decoding, and how far behind a query is told to be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from tests.support import corpus
from tidegate.model import physical_ms
from tidegate.spark.decoding import Decoding, Reading, bounded
from tidegate.spark.metrics import Tally, TallyCounter, measure


class Counting:
    """A counter without Spark."""

    def __init__(self) -> None:
        self.value = Tally()

    def add(self, tally: Tally) -> None:
        self.value += tally


def messages(*rows: dict[str, Any]) -> pa.RecordBatch:
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
        ]
    )
    return pa.RecordBatch.from_pylist(list(rows), schema)


def test_a_tally_says_what_was_decoded() -> None:
    sent = corpus.messages("bank.canal.ext.stream")[:500]
    rows = [
        {"key": m.key, "value": m.value, "topic": "t", "partition": m.partition, "offset": n}
        for n, m in enumerate(sent)
    ]
    rows.append({"key": None, "value": b"{", "topic": "t", "partition": 0, "offset": 500})
    counter = Counting()
    decoding = Decoding(Reading("canal-json"), cast(TallyCounter, counter))
    changes = pa.Table.from_batches(list(decoding([messages(*rows[:200]), messages(*rows[200:])])))

    tally = counter.value
    kinds = changes["kind"].to_pylist()
    assert tally.kinds == {kind: kinds.count(kind) for kind in set(kinds)}
    assert tally.messages == 501
    assert tally.bad_messages == 1
    assert tally.rows == sum(kinds.count(kind) for kind in ("insert", "update", "delete"))
    sizes = sum(len(row["key"] or b"") + len(row["value"]) for row in rows)
    assert sizes <= tally.bytes <= sizes + 16 * len(rows)
    assert tally.decode_ns > 0
    highest: dict[Any, int] = {}
    for row in changes.to_pylist():
        if row["kind"] == "watermark":
            place = row["topic"], row["partition"]
            highest[place] = max(highest.get(place, 0), row["commit_ts"])
    assert tally.watermarks == highest
    assert len(highest) == 3


def test_progress_tells_lag_in_messages_and_seconds() -> None:
    mark = 470492981033172992
    counter = SimpleNamespace(value=Tally(messages=7, watermarks={("t", 0): mark}))
    last = {
        "batchId": 3,
        "sources": [
            {
                "endOffset": {"t": {"0": 5, "1": 9}},
                "latestOffset": {"t": {"0": 8, "1": 9, "2": 4}},
            }
        ],
    }
    found = measure(cast(TallyCounter, counter), last, now=physical_ms(mark) / 1000 + 2.5)

    assert found.behind == {("t", 0): 3, ("t", 1): 0, ("t", 2): 4}
    assert found.lag == {("t", 0): 2.5}
    assert (found.batch, found.most_behind, found.longest_lag) == (3, 4, 2.5)
    assert found.to_json()["partitions"][0] == {
        "topic": "t",
        "partition": 0,
        "behind": 3,
        "lagSeconds": 2.5,
    }
    earlier = measure(cast(TallyCounter, SimpleNamespace(value=Tally(messages=4))), None)
    assert found.since(earlier).messages == 3


def test_large_batches_are_cut_by_bytes_and_nothing_is_lost() -> None:
    batch = messages(*({"key": None, "value": b"x" * size} for size in (10, 4000, 10, 10, 5000, 9)))
    parts = list(bounded(batch, 1000))

    assert [part["value"].to_pylist() for part in parts] == [
        [b"x" * 10],
        [b"x" * 4000],
        [b"x" * 10, b"x" * 10],
        [b"x" * 5000],
        [b"x" * 9],
    ]
    assert list(bounded(batch, 1 << 20)) == [batch]
