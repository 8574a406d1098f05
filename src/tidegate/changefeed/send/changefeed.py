"""The sending side: changes in commit order become messages with a topic and a partition.

The rules are those of TiCDC's Kafka sink: which tables are sent, where each row goes, which rows
share a message, that a DDL follows all earlier rows to all partitions (Canal-JSON: to the first
alone), that watermarks go to every partition of every topic at an interval and never ahead of a row
that is not sent, and that a Simple feed sends table schemas ahead of rows. No I/O, but for
claim-check objects, which go where the caller says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.batching import joined
from tidegate.changefeed.send.bootstrap import Bootstraps, schema_batch
from tidegate.changefeed.send.dispatch import Dispatcher
from tidegate.changefeed.send.row_groups import RowGroup, is_row, kept, row_groups, scattered, taken
from tidegate.changefeed.send.split import split_updates
from tidegate.model import ConfigError, EncodeError
from tidegate.model.tso import physical_ms
from tidegate.sql.ddl_names import ddl_tables
from tidegate.sql.ddl_schemas import DdlSchemas
from tidegate.wire import CHANGE_SCHEMA, EncodeOptions, ShapeBook, encode_batch, to_folder

OUTGOING_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        pa.field("partition", pa.int32(), nullable=False),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""What is sent, in the order of sending; the topic is null where the sink URI names none."""

DEFAULT_PARTITIONS = 3  # TiCDC's default where neither the changefeed nor the topic says how many
WATERMARK_SECONDS = 1.0

_JOINING = ("open-protocol", "craft")
_WINDOW = 2048  # rows that TiCDC takes out of its queue at once
_UNLIKE_BY_GENERATION = ("open-protocol", "simple")
_STORAGE = "sink.kafka-config.large-message-handle.claim-check-storage-uri"


class _Target(NamedTuple):
    """A partition of a topic; topics are numbered in the order in which they came up."""

    topic: int
    partition: int


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages, where they go, and what they stand in order by."""

    order: pa.Int64Array
    topic: pa.Int32Array
    partition: pa.Int32Array
    messages: pa.RecordBatch


@dataclass(slots=True)
class _Progress:
    """What the sender has done; put back as it was when a batch cannot be sent."""

    topics: dict[str | None, int]
    watermark: int = 0
    watermark_time: float | None = None
    pending: int = 0
    remembered: list[pa.RecordBatch] | None = None

    def copy(self) -> _Progress:
        remembered = None if self.remembered is None else list(self.remembered)
        return replace(self, topics=dict(self.topics), remembered=remembered)


class Changefeed:
    """Turns a stream of changes into messages, as TiCDC's Kafka sink does.

    - `partitions`: of every topic; default: `partition-num`, or 3 as in TiCDC.
    - `clock`: seconds, for the cadence of watermarks and BOOTSTRAP messages. None: the time is that
      of the changes themselves, by their commit_ts.
    - `generation`: which TiCDC to agree with, where the two architectures differ.
    - `claim_check`: keeps a large message and gives its location; default: the folder that the
      changefeed names, if it is a local one.
    - `build_ts`: milliseconds that Canal-JSON and Simple write as the time of sending; default: the
      clock's.
    - `watermark_interval`: seconds; 0: every watermark is sent.
    - `remember`: keeps all that was sent for `resend`.
    - `topics`: those that an earlier run has sent to; watermarks go to them too.

    An error leaves the feed as it was: nothing of that batch is sent.
    """

    def __init__(
        self,
        config: ChangefeedConfig,
        *,
        partitions: int | None = None,
        clock: Callable[[], float] | None = time.time,
        generation: Literal["classic", "new"] = "classic",
        claim_check: Callable[[bytes], str] | None = None,
        build_ts: int | None = None,
        watermark_interval: float = WATERMARK_SECONDS,
        time_zone: str = "UTC",
        remember: bool = False,
        topics: Iterable[str] = (),
    ) -> None:
        self.config = config
        self.generation = generation
        self.shapes = ShapeBook()
        self.options = _encode_options(config, generation, claim_check, time_zone)
        self._protocol = config.protocol or ""
        count = partitions or config.partition_num or DEFAULT_PARTITIONS
        self.dispatcher = Dispatcher(config, count, generation=generation)
        self._clock = clock
        self._now = 0.0
        self._build_ts = build_ts
        self._interval = watermark_interval
        numbered = {
            name: number for number, name in enumerate(dict.fromkeys((config.topic, *topics)))
        }
        self._progress = _Progress(numbered, remembered=[] if remember else None)
        self._bootstraps: Bootstraps | None = None
        if config.sends_bootstrap:
            self._bootstraps = Bootstraps(config, generation, self.shapes)
        self._ddl_schemas = DdlSchemas() if config.protocol == "simple" else None
        self._replicated: dict[tuple[str, str], bool] = {}
        self._own_ids: set[tuple[str, str, int | None]] = set()

    @property
    def topics(self) -> tuple[str | None, ...]:
        """The topics that have come up so far; the default one first, None if it has no name."""
        return tuple(self._progress.topics)

    @property
    def watermark(self) -> int:
        """The last watermark that was sent; 0 before the first."""
        return self._progress.watermark

    # --- what callers do --------------------------------------------------------------------------

    def learn(self, changes: pa.RecordBatch) -> None:
        """Takes in the shapes and schemas of changes that come later, or elsewhere."""
        self.shapes.add(changes)
        if self._bootstraps is not None:
            self._bootstraps.learn(changes)

    def send(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """The messages of these changes, of OUTGOING_SCHEMA, in the order of sending.

        `changes` follow those sent before, in the order of commit. Their `schema` rows tell shapes;
        a `watermark` row says that nothing at or below it is still to come. A transaction must not
        be cut between batches where an update of it changes a key.
        """
        self._tick(changes)
        return self._all_or_nothing(lambda: self._sent(changes))

    def close(self) -> pa.RecordBatch:
        """What is still to be sent: the last watermark, whatever the clock says."""
        self._tick(None)
        if self._progress.pending <= self._progress.watermark:
            return _nothing()
        return self._all_or_nothing(
            lambda: self._written(_watermarks([self._mark(self._progress.pending)]))
        )

    def resend(self, since: int) -> pa.RecordBatch:
        """All rows and DDL after this commit_ts once more, as TiCDC sends them after a failure."""
        remembered = self._progress.remembered
        if remembered is None:
            raise ValueError("only a Changefeed made with remember=True can send again")
        self._tick(None)
        if not remembered:
            return _nothing()
        changes = pa.concat_batches(remembered)
        changes = kept(changes, pc.fill_null(pc.greater(changes["commit_ts"], since), True))

        def again() -> pa.RecordBatch:
            if self._bootstraps is not None:
                self._bootstraps.forget()
            return self._written(changes)

        return self._all_or_nothing(again)

    # --- time -------------------------------------------------------------------------------------

    def _tick(self, changes: pa.RecordBatch | None) -> None:
        """Reads the clock; it never goes back here."""
        if self._clock is not None:
            self._now = max(self._now, self._clock())
        elif changes is not None:
            newest = pc.max(changes["commit_ts"]).as_py()
            self._now = max(self._now, 0.0 if newest is None else physical_ms(newest) / 1000)

    def _mark(self, ts: int) -> int:
        """Notes that a watermark is sent."""
        self._progress.watermark = ts
        self._progress.watermark_time = self._now if self._clock else physical_ms(ts) / 1000
        return ts

    def _is_due(self, ts: int) -> bool:
        last = self._progress.watermark_time
        now = self._now if self._clock else physical_ms(ts) / 1000
        return last is None or now - last >= self._interval

    def _with_due_watermarks(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """The changes without the watermarks that are not to be sent, and with one held back."""
        progress = self._progress
        held = progress.pending
        is_mark = pc.equal(changes["kind"], "watermark")
        places = pc.indices_nonzero(is_mark)
        stamps = changes["commit_ts"].take(places).to_pylist()
        progress.pending = max([held, *(ts for ts in stamps if ts is not None)])
        if not self.config.sends_watermarks:
            return kept(changes, pc.invert(is_mark))
        chosen = self._chosen(stamps)
        first = []
        if not chosen and not stamps and held > progress.watermark and self._is_due(held):
            first = [_watermarks([self._mark(held)])]
        unsent = [place for number, place in enumerate(places.to_pylist()) if number not in chosen]
        if unsent:
            numbers = pa.array(range(changes.num_rows), pa.int64())
            changes = kept(changes, pc.invert(pc.is_in(numbers, pa.array(unsent, pa.int64()))))
        return pa.concat_batches([*first, changes]) if first else changes

    def _chosen(self, stamps: Sequence[int | None]) -> set[int]:
        """Which of a batch's watermarks are sent, and notes them."""
        chosen: set[int] = set()
        numbers = range(len(stamps))
        if self._clock is not None and self._interval > 0:
            numbers = numbers[-1:]  # the batch comes at one instant
        for number in numbers:
            ts = stamps[number]
            if ts is not None and ts > self._progress.watermark and self._is_due(ts):
                self._mark(ts)
                chosen.add(number)
        return chosen

    # --- what is sent at all ----------------------------------------------------------------------

    def _wanted(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of replicated tables, their DDL, and watermarks."""
        kind = changes["kind"]
        if pc.any(pc.equal(kind, "error")).as_py():
            raise EncodeError(self._protocol, "a message that could not be decoded is no change")
        mask = pc.not_equal(kind, "schema")
        for group in row_groups(changes):
            if not self._replicates(group.database, group.table):
                mask = pc.and_(mask, pc.invert(_at(group.places, changes.num_rows)))
        unwanted = [row["place"] for row in _ddl_rows(changes) if not self._wants_ddl(row)]
        if unwanted:
            mask = pc.and_(mask, pc.invert(_at(pa.array(unwanted, pa.int64()), changes.num_rows)))
        return kept(changes, mask)

    def _replicates(self, database: str, table: str) -> bool:
        found = self._replicated.get((database, table))
        if found is None:
            found = self._replicated[database, table] = self.config.replicates(database, table)
        return found

    def _wants_ddl(self, row: dict[str, Any]) -> bool:
        old, new = ddl_tables(row)
        if new is None:
            database = row["database"]
            return not database or self.config.replicates_database(database)
        if old is None or old == new:
            return self._replicates(*new)
        if "RENAME" not in row["ddl"]["query"].upper():  # of two tables: EXCHANGE PARTITION
            return self._replicates(*old) or self._replicates(*new)
        if self._replicates(*new) and not self._replicates(*old):
            raise ConfigError(
                "filter.rules",
                f"{'.'.join(old)} is renamed to {'.'.join(new)}, and only the new name is in the "
                "feed, which then would lack the rows of before; let the rules take both names",
            )
        return self._replicates(*old)

    # --- writing ----------------------------------------------------------------------------------

    def _sent(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        changes = self._with_partition_ids(changes)
        if self._ddl_schemas is not None:
            changes = self._ddl_schemas.complete(changes)
        parts = [changes] if self._bootstraps is None else self._bootstraps.parts(changes)
        found = []
        for part in parts:
            self.learn(part)
            found.append(self._sent_part(part))
        return found[0] if len(found) == 1 else pa.concat_batches(found)

    def _with_partition_ids(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Open and Craft have the ids of partitions; a row of a whole table has none there.

        DDL tells which id is a table's own; EXCHANGE PARTITION can make it one of a partition of
        another table.
        """
        if self._protocol not in _JOINING:
            return changes
        for row in _ddl_rows(changes):
            for schema in json.loads(row["schema"] or "{}").values():
                self._own_ids.add((schema["schema"], schema["table"], schema.get("tableID")))
        own = [
            group.places
            for group in row_groups(changes)
            if (group.database, group.table, group.table_id) in self._own_ids
        ]
        if not own:
            return changes
        is_own = _at(pa.concat_arrays(own), changes.num_rows)
        place = changes.schema.get_field_index("table_id")
        return changes.set_column(place, "table_id", pc.if_else(is_own, None, changes["table_id"]))

    def _sent_part(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        changes = split_updates(self._wanted(changes), self.shapes, self.generation)
        if self._progress.remembered is not None:
            is_mark = pc.equal(changes["kind"], "watermark")
            self._progress.remembered.append(kept(changes, pc.invert(is_mark)))
        return self._written(self._with_due_watermarks(changes))

    def _all_or_nothing(self, write: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
        progress = self._progress.copy()
        schemas = None if self._ddl_schemas is None else self._ddl_schemas.copy()
        bootstraps = None if self._bootstraps is None else self._bootstraps.saved()
        try:
            return write()
        except BaseException:
            self._progress = progress
            self._ddl_schemas = schemas
            if self._bootstraps is not None and bootstraps is not None:
                self._bootstraps.restore(bootstraps)
            raise

    def _written(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """The messages of changes that are all to be sent."""
        if changes.num_rows == 0 and self._bootstraps is None:
            return _nothing()
        build_ts = int(self._now * 1000) if self._build_ts is None else self._build_ts
        self.options = replace(self.options, build_ts=build_ts)
        rows = is_row(changes)
        places = pc.cast(pc.indices_nonzero(rows), pa.int64())
        data = kept(changes, rows)
        groups = row_groups(data)
        found = self._written_rows(data, places, changes, groups)
        # Broadcasts go to the topics that have come up by then, rows' topics included.
        found += self._written_events(changes, pc.invert(rows))
        found += self._written_bootstraps(groups, places)
        return self._in_order(found)

    def _encoded(self, batch: pa.RecordBatch, **settings: Any) -> pa.RecordBatch:
        return encode_batch(
            self._protocol, batch, shapes=self.shapes, options=self.options, **settings
        )

    def _topic(self, name: str | None) -> int:
        """The number of a topic; one that comes up gets watermarks from then on."""
        topics = self._progress.topics
        return topics.setdefault(name, len(topics))

    def _written_rows(
        self,
        data: pa.RecordBatch,
        places: pa.Int64Array,
        changes: pa.RecordBatch,
        groups: list[RowGroup],
    ) -> list[_Messages]:
        if data.num_rows == 0:
            return []
        topics, tables = [], []
        for number, group in enumerate(groups):
            topic = self._topic(self.dispatcher.topic(group.database, group.table))
            count = len(group.places)
            topics.append(pa.repeat(pa.scalar(topic, pa.int32()), count))
            tables.append(pa.repeat(pa.scalar(number, pa.int32()), count))
        keys = [self.dispatcher.group_keys(data, group, self.shapes) for group in groups]
        by_group = [group.places for group in groups]

        def spread(values: list[pa.Array]) -> pa.Array:
            if len(values) == 1:
                return values[0]
            return scattered(by_group, values, data.num_rows, values[0].type)

        topic, key = spread(topics), spread(keys)
        partition = self.dispatcher.partitions_of(key)

        def messages(encoded: pa.RecordBatch, first_rows: pa.Array) -> _Messages:
            order = _after(places.take(first_rows))
            return _Messages(order, topic.take(first_rows), partition.take(first_rows), encoded)

        if not self._joins:
            encoded = self._encoded(data)
            return [messages(encoded, encoded["row"])]
        belongs = {"window": _windows(changes, places), "topic": topic, "partition": partition}
        if self._protocol == "cdc":
            belongs["commit_ts"] = data["commit_ts"]
        else:
            belongs |= {"table": spread(tables), "key": key}

        def encode(rows: pa.Int64Array, size: int) -> pa.RecordBatch:
            return self._encoded(taken(data, rows), max_batch_size=size)

        once = self.options.large_message_handle == "claim-check"
        found = joined(encode, belongs, self.options.max_batch_size, once=once)
        return [messages(encoded, rows) for encoded, rows in found]

    @property
    def _joins(self) -> bool:
        return self._protocol == "cdc" or (
            self._protocol in _JOINING and self.options.max_batch_size > 1
        )

    def _written_events(self, changes: pa.RecordBatch, mask: pa.BooleanArray) -> list[_Messages]:
        """DDL and watermarks, each to all partitions that it must reach."""
        if mask.true_count == 0:
            return []
        places = pc.indices_nonzero(mask).to_pylist()
        events = kept(changes, mask)
        ddl = {row["place"]: row for row in _ddl_rows(events)}
        targets: list[list[_Target]] = []
        for place in range(events.num_rows):
            if place in ddl:
                targets.append(self._ddl_targets(ddl[place]))
            else:
                targets.append(
                    self._all_partitions(
                        self._progress.topics.values(), self.dispatcher.watermark_partitions()
                    )
                )
        return [_broadcast(self._encoded(events), targets, [2 * place + 1 for place in places])]

    def _ddl_targets(self, row: dict[str, Any]) -> list[_Target]:
        old, new = ddl_tables(row)
        name = old or new
        topic = self.dispatcher.ddl_topic(*name) if name else self.config.topic
        if self._bootstraps is not None:
            self._bootstraps.saw_ddl(row["schema"])
        return self._all_partitions([self._topic(topic)], self.dispatcher.ddl_partitions())

    def _written_bootstraps(self, groups: list[RowGroup], places: pa.Int64Array) -> list[_Messages]:
        if self._bootstraps is None:
            return []
        due = self._bootstraps.due(groups, self._now)
        if not due:
            return []
        targets, order = [], []
        for schema in due:
            topic = self._topic(self.dispatcher.topic(schema.database, schema.table))
            targets.append(self._all_partitions([topic], self.dispatcher.bootstrap_partitions()))
            order.append(-1 if schema.place is None else 2 * places[schema.place].as_py())
        return [_broadcast(self._encoded(schema_batch(due)), targets, order)]

    def _all_partitions(self, topics: Iterable[int], partitions: range) -> list[_Target]:
        return [_Target(topic, partition) for topic in topics for partition in partitions]

    def _in_order(self, found: list[_Messages]) -> pa.RecordBatch:
        found = [part for part in found if part.messages.num_rows]
        if not found:
            return _nothing()
        names = pa.array(self.topics, pa.string())
        topic = pa.concat_arrays([part.topic for part in found])
        columns = [
            names.take(topic),
            pa.concat_arrays([part.partition for part in found]),
            *(
                pa.concat_arrays([part.messages[name] for part in found])
                for name in ("key", "value")
            ),
        ]
        sent = pa.RecordBatch.from_arrays(columns, schema=OUTGOING_SCHEMA)
        if len(found) == 1 and not self._joins:
            return sent
        order = pa.concat_arrays([part.order for part in found])
        return sent.take(pc.sort_indices(order))


def _encode_options(
    config: ChangefeedConfig,
    generation: Literal["classic", "new"],
    claim_check: Callable[[bytes], str] | None,
    time_zone: str,
) -> EncodeOptions:
    if config.large_message_handle == "claim-check" and claim_check is None:
        claim_check = _claim_check_folder(config)
    differs = config.protocol in _UNLIKE_BY_GENERATION
    options = config.encode_options(
        generation=generation if differs else "classic",
        claim_check=claim_check,
        time_zone=time_zone,
    )
    # Only rows that say what was done to them can make a feed of the cdc format.
    return replace(options, profile="operations") if config.protocol == "cdc" else options


def _claim_check_folder(config: ChangefeedConfig) -> Callable[[bytes], str]:
    storage = config.claim_check_storage_uri
    uri = urlsplit("" if storage is None else storage.reveal())
    if (
        uri.scheme not in ("", "file", "local")
        or uri.netloc not in ("", "localhost")
        or not uri.path
    ):
        reason = "only file:///folder can be written to from here; give claim_check for others"
        raise ConfigError(_STORAGE, reason)
    return to_folder(unquote(uri.path))


def _nothing() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=OUTGOING_SCHEMA)


def _after(places: pa.Int64Array) -> pa.Int64Array:
    """What events stand in order by; even numbers are for what goes before them."""
    return pc.add(pc.multiply(places, 2), 1)


def _at(places: pa.Int64Array, count: int) -> pa.BooleanArray:
    """True at these places."""
    return pc.is_in(pa.array(range(count), pa.int64()), places)


def _windows(changes: pa.RecordBatch, places: pa.Int64Array) -> pa.Int64Array:
    """A number for each row: rows of one number have no DDL or watermark between them."""
    is_barrier = pc.cast(pc.invert(is_row(changes)), pa.int64())
    barriers = pc.cumulative_sum(is_barrier).take(places)
    return pc.add(pc.multiply(barriers, changes.num_rows), pc.divide(places, _WINDOW))


def _watermarks(stamps: list[int]) -> pa.RecordBatch:
    rows = [{"kind": "watermark", "event": 0, "flags": 0, "commit_ts": ts} for ts in stamps]
    return pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA)


def _ddl_rows(changes: pa.RecordBatch) -> list[dict[str, Any]]:
    places = pc.indices_nonzero(pc.equal(changes["kind"], "ddl"))
    if len(places) == 0:
        return []
    rows = changes.select(["database", "table", "ddl", "schema"]).take(places).to_pylist()
    return [row | {"place": place} for row, place in zip(rows, places.to_pylist(), strict=True)]


def _broadcast(
    encoded: pa.RecordBatch, targets: list[list[_Target]], order: list[int]
) -> _Messages:
    """Each message once for every target of the row that it is of."""
    numbers, rows, found = [], [], []
    for number, row in enumerate(encoded["row"].to_pylist()):
        numbers += [number] * len(targets[row])
        rows += [order[row]] * len(targets[row])
        found += targets[row]
    return _Messages(
        pa.array(rows, pa.int64()),
        pa.array([target.topic for target in found], pa.int32()),
        pa.array([target.partition for target in found], pa.int32()),
        encoded.take(pa.array(numbers, pa.int64())),
    )
