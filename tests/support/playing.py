"""Any way to read a feed: partitions interleaved, messages sent again, the reader begun anew."""

import random
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import Phase, settings
from hypothesis import strategies as st

from tests.support.mirror import Mirror
from tests.support.table_model import TableModel
from tidegate.changefeed.receive.gate import Gate

PARTITIONS = [("", number) for number in range(3)]
REPEATS = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0, 1), st.integers(0, 5)), min_size=1, max_size=4
)
RESTARTS = st.lists(st.sampled_from(["resume", "rewind"]), max_size=4)


def quietly(examples: int) -> settings:
    """A failing example is not made smaller, which takes minutes: its seed plays it again."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )


class Log:
    """The messages of a feed of three partitions, as a Kafka topic keeps them."""

    def __init__(self, table: pa.Table) -> None:
        places = pa.array(range(table.num_rows))
        is_shape = pc.equal(table["event"], -1)
        self.table = table
        self.shapes = table.filter(is_shape)
        columns = ["partition", "offset", "kind", "commit_ts"]
        entries = table.select(columns).append_column("place", places)
        self.partitions: list[list[tuple[list[int], str, int]]] = [[], [], []]
        for entry in entries.filter(pc.invert(is_shape)).to_pylist():
            messages = self.partitions[entry["partition"]]
            if entry["offset"] == len(messages):
                messages.append(([], entry["kind"], entry["commit_ts"] or 0))
            messages[-1][0].append(entry["place"])

    def copy(self) -> "Log":
        """Another log of the same messages, to which more may be written."""
        other = Log.__new__(Log)
        other.__dict__ |= vars(self) | {"partitions": list(self.partitions)}
        return other

    def again(self, partition: int, end: int, back: int) -> None:
        """Makes a partition repeat, before message `end`, all since the `back`-th watermark before."""
        messages = self.partitions[partition]
        found = [place for place, entry in enumerate(messages[:end]) if entry[1] == "watermark"]
        start = found[-back] + 1 if 0 < back <= len(found) else 0
        self.partitions[partition] = messages[:end] + messages[start:]

    def read(self, partition: int, start: int, end: int) -> pa.Table:
        """The events of some messages, at the offsets that they have in this log."""
        places: list[int] = []
        offsets: list[int] = []
        for offset, entry in enumerate(self.partitions[partition][start:end], start):
            places += entry[0]
            offsets += [offset] * len(entry[0])
        column = self.table.schema.get_field_index("offset")
        field = self.table.schema.field(column)
        return self.table.take(pa.array(places, pa.int64())).set_column(
            column, field, pa.array(offsets, pa.int64())
        )

    def unapplied(self, partition: int, position: int, applied_ts: int) -> int:
        """Where to read again from, to see all that was not applied."""
        for place, (_, kind, commit_ts) in enumerate(self.partitions[partition][:position]):
            if kind != "watermark" and commit_ts > applied_ts:
                return place
        return position


def play(
    log: Log,
    on_state: Callable[[int, TableModel], None],
    seed: int,
    repeats: list[tuple[int, float, int]],
    restarts: list[str],
) -> Mirror:
    """Reads a feed as chance has it; gives the mirror in the end."""
    chance = random.Random(seed)
    feed = log.copy()
    for partition, where, back in repeats:
        feed.again(partition, int(where * len(feed.partitions[partition])), back)
    mirror = Mirror(Gate(PARTITIONS), on_state=on_state)
    mirror.read(feed.shapes)
    positions = [0, 0, 0]
    restarts = list(restarts)
    while True:
        left = [number for number in range(3) if positions[number] < len(feed.partitions[number])]
        if not left:
            return mirror
        parts = []
        for _ in range(chance.randint(1, 4)):
            number = chance.choice(left)
            start = positions[number]
            positions[number] = min(start + chance.randint(1, 40), len(feed.partitions[number]))
            parts.append(feed.read(number, start, positions[number]))
        mirror.read(pa.concat_tables(parts))
        if restarts and chance.random() < 0.1:
            if restarts.pop() == "resume":
                mirror = mirror.resumed()
            else:
                mirror = mirror.rewound()
                applied = mirror.gate.applied_ts
                positions = [feed.unapplied(n, positions[n], applied) for n in range(3)]
            mirror.read(feed.shapes)
