"""What each golden file carries of the truth, in the form of `tidegate inspect --output json`.

RULES says it for each protocol, the words of a variant's name change it, and EXCEPTIONS lists every place
where TiCDC itself is at fault and a decoder cannot, or need not, read the truth. There is no fourth place.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from tests.support import corpus, truth
from tests.support.corpus import Variant
from tests.support.table_schema import simple_schema, without_defaults
from tests.support.truth import DELETE, INSERT, ROWS, UPDATE, Column, Event

Json = dict[str, Any]

TIMESTAMP = 7  # among the type codes
PHYSICAL = 18  # bits of a TSO that are no milliseconds
MESSAGE_LIMIT = 3000  # max-message-bytes of the hk and cc variants
RECORD_OVERHEAD = 36  # what TiCDC adds for Kafka's own record framing
OPEN_OVERHEAD = 16 + 8  # version and two lengths of a batch of one


@dataclass(frozen=True)
class Rules:
    """What a wire carries. `None` and False: not at all."""

    commit_ts: str = "tso"  # or "milliseconds": the logical part is lost
    watermarks: bool = True
    table_id: str | None = None  # "partition": only of a partition; "physical": of every row
    schema_version: bool = False
    types: str = "name"  # or "zerofill", "full": with parameters
    keys: str = "handle"  # or "primary": nothing unless the table has a primary key
    ddl: tuple[str, ...] = ("query",)  # `type` stands for itself, or follows from `code`
    ddl_names: str = "event"  # or "schema": from the table schema that the DDL brings
    ddl_broadcast: bool = True
    order: str | None = "table"  # of columns; "bytes": sorted; None: no order
    rows_by_table: bool = False  # rows between two watermarks or DDLs go out table by table
    old_values: bool = True
    only_changed: bool = False  # `before` of an update: the changed columns
    unchanged_update: str = UPDATE  # what an update looks like that changed nothing
    delete_handle_only: bool = False
    oversize_handle_only: bool = False
    checksum: bool = False


RULES = {
    "open": Rules(
        table_id="partition", ddl=("type", "code", "query"), order="bytes", rows_by_table=True
    ),
    "craft": Rules(table_id="partition", ddl=("type", "code", "query"), rows_by_table=True),
    "canal": Rules(types="zerofill", keys="primary", ddl=("type", "query"), ddl_broadcast=False),
    "simple": Rules(
        table_id="physical",
        schema_version=True,
        types="zerofill",
        ddl=("type", "query"),
        ddl_names="schema",
        order="bytes",
    ),
}
EXTENDED = frozenset({"ext", "updcols", "delhk", "hk", "cc", "rowkey"})


def mended(protocol: str, *options: str) -> Variant:
    """A feed of the classic generation that has no known fault."""
    words = frozenset({"mended", *options})
    return Variant("", "classic", "", protocol, None, words, None, False, 0)


@cache
def rules(variant: Variant) -> Rules:
    """What the settings of a variant make of its protocol's rules."""
    found = RULES[variant.protocol]
    options = variant.options
    if variant.protocol == "canal" and not (options & EXTENDED or variant.compression):
        found = replace(found, commit_ts="milliseconds", watermarks=False)
    if variant.protocol == "open":
        if variant.generation == "new":
            found = replace(found, order="table")
        elif "updcols" in options:
            found = replace(found, unchanged_update=INSERT)
    if variant.encoding == "avro":
        found = replace(found, order=None)
    if "compat" in options:
        found = replace(found, types="full")
    if options & {"updcols", "compat"}:
        found = replace(found, only_changed=True)
    if "delhk" in options and variant.protocol != "simple":  # Simple does not heed it
        found = replace(found, delete_handle_only=True)
    if "mix" in options:
        found = replace(found, rows_by_table=False)
    return replace(
        found,
        old_values="noold" not in options,
        oversize_handle_only="hk" in options,
        checksum="ck" in options,
    )


@dataclass(frozen=True)
class Fault:
    """A defect of TiCDC: which columns it spoils, and what is asked of a decoder all the same."""

    reason: str
    applies: Callable[[Variant, Event], bool]
    spoils: Callable[[str, Column, Event], bool]  # side (after, before), column
    effect: str  # "spoiled": any value; "unnamed": perhaps not carried; "sign": perhaps signed


def _turned_null(side: str, column: Column, event: Event) -> bool:
    after = {new.name: new.text for new in event.after or ()}
    return side == "before" and column.text is not None and after[column.name] is None


EXCEPTIONS = (
    Fault(
        "Craft reserves four bytes for a FLOAT and writes eight: the next value overwrites its tail.",
        lambda variant, event: variant.protocol == "craft" and "mended" not in variant.options,
        lambda side, column, event: column.code == 4,
        "spoiled",
    ),
    Fault(
        "Open, new architecture, only-output-updated-columns: a column that became NULL stands in `p` "
        "as bare members t, f, v without its name.",
        lambda variant, event: (
            variant.protocol == "open"
            and variant.generation == "new"
            and "updcols" in variant.options
            and event.kind == UPDATE
        ),
        _turned_null,
        "unnamed",
    ),
    Fault(
        "Simple in Avro, classic: BIT and SET are signed longs, so that only the table schema tells "
        "2^63 and more from negative numbers.",
        lambda variant, event: variant.encoding == "avro" and variant.generation == "classic",
        lambda side, column, event: column.code in (16, 248) and int(column.text or 0) >= 1 << 63,
        "sign",
    ),
)
"""Where the wire does not carry the truth though the rules say so. Nothing else is excused.

Not listed, as nothing is compared there: `aliasbug`, whose rows carry wrong names.
The new architecture's stale flags on partitioned tables are part of its own truth files.
"""


class Spoiled:
    """A value that a fault has spoiled: whatever can be read of it will do, also nothing."""

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, str)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<spoiled>"


class EitherSign:
    """A number of 64 bits, as unsigned or as signed text."""

    def __init__(self, text: str) -> None:
        self.texts = (text, str(int(text) - (1 << 64)))

    def __eq__(self, other: object) -> bool:
        return other in self.texts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return " or ".join(self.texts)


class Partial(dict[str, Any]):
    """The columns that must be there, and what others must be if they are there."""

    def __init__(self, required: Json, optional: Json) -> None:
        super().__init__(required)
        self.optional = optional

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict):
            return False
        whole = {**self.optional, **self}
        return self.keys() <= other.keys() <= whole.keys() and all(
            whole[name] == value for name, value in other.items()
        )

    __hash__ = None  # type: ignore[assignment]


def _faults(variant: Variant, event: Event) -> list[Fault]:
    return [fault for fault in EXCEPTIONS if fault.applies(variant, event)]


def _side(variant: Variant, event: Event, side: str, columns: Iterable[Column]) -> Json:
    """The columns of one side as this wire carries them, in its order."""
    mapping: Json = {column.name: column.text for column in columns}
    optional: Json = {}
    for fault in _faults(variant, event):
        for column in columns:
            if not fault.spoils(side, column, event):
                continue
            if fault.effect == "unnamed":
                optional[column.name] = mapping.pop(column.name)
            elif fault.effect == "sign":
                mapping[column.name] = EitherSign(column.text or "")
            elif column.text is not None:
                mapping[column.name] = Spoiled()
    if optional:
        return Partial(mapping, optional)
    if rules(variant).order == "bytes":
        return dict(sorted(mapping.items(), key=lambda item: item[0].encode()))
    return mapping


def _types(rule: Rules, event: Event, names: Iterable[str]) -> Json:
    columns = {column.name: column for column in event.columns}
    schema = event.schema
    if rule.types == "full":
        assert schema is not None
        return {name: schema.full_type(name) for name in names}
    zerofill = rule.types == "zerofill" and schema is not None
    return {
        name: columns[name].type_name(
            zerofill=zerofill and schema is not None and schema.is_zerofill(name)
        )
        for name in names
    }


def _handle(columns: Iterable[Column]) -> tuple[Column, ...]:
    return tuple(column for column in columns if column.is_handle)


def _changed(event: Event) -> tuple[Column, ...]:
    after = {column.name: column.text for column in event.after or ()}
    return tuple(old for old in event.before or () if after[old.name] != old.text)


def _present(members: Json) -> Json:
    return {name: value for name, value in members.items() if value is not None}


def expected(variant: Variant, event: Event, *, oversize: bool = False) -> Json | None:
    """What this wire carries of an event, or None: nothing at all."""
    rule = rules(variant)
    commit_ts = event.commit_ts
    if rule.commit_ts == "milliseconds":
        commit_ts = commit_ts >> PHYSICAL << PHYSICAL
    if event.kind == "watermark":
        return {"kind": "watermark", "commitTs": commit_ts} if rule.watermarks else None
    if event.kind == "ddl":
        return {"kind": "ddl", "commitTs": commit_ts, **_ddl(variant, rule, event)}
    return {"commitTs": commit_ts, **_row(variant, rule, event, oversize)}


def _ddl(variant: Variant, rule: Rules, event: Event) -> Json:
    word = event.ddl_word
    if variant.protocol == "simple" and variant.generation == "new":
        word = "ALTER" if event.ddl_code == truth.EXCHANGE_PARTITION else word
    told = {"type": word, "code": event.ddl_code, "query": event.query}
    members: Json = {"ddl": {name: told[name] for name in rule.ddl}}
    if rule.ddl_names == "event":
        return members | _present({"database": event.database, "table": event.table})
    schema = event.schema
    if schema is None:  # of a database: Simple names none
        return members
    named = ("tableSchema", schema), ("preTableSchema", event.schema_before)
    return members | {
        "database": schema.database,
        "table": schema.table,
        "tableId": schema.table_id,
        "schemaVersion": schema.version,
        "schema": {
            name: without_defaults(simple_schema(told, variant.generation))
            for name, told in named
            if told is not None
        },
    }


def bootstrap(variant: Variant, database: str, table: str, table_id: int, version: int) -> Json:
    """What a BOOTSTRAP says that names this table; the truth does not tell when one is sent."""
    schema = truth.schemas(variant.truth).find(database, table, version)
    assert table_id in {schema.table_id} | _physical_ids(variant.truth)[database, table]
    told = without_defaults(simple_schema(schema, variant.generation))
    return {
        "kind": "schema",
        "database": database,
        "table": table,
        "tableId": table_id,
        "schemaVersion": version,
        "schema": {"tableSchema": told | {"tableID": table_id, "version": version}},
    }


@lru_cache(maxsize=4)
def _physical_ids(scenario: str) -> dict[tuple[str, str], set[int]]:
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for event in truth.events(scenario):
        if event.kind in ROWS and event.table_id is not None:
            found[event.database or "", event.table or ""].add(event.table_id)
    return found


def _row(variant: Variant, rule: Rules, event: Event, oversize: bool) -> Json:
    kind = event.kind
    after, before = event.after, event.before
    if kind == UPDATE and not rule.old_values:
        kind, before = INSERT, None
    elif kind == UPDATE and rule.only_changed:
        before = _changed(event)
        if not before and rule.unchanged_update == INSERT:
            kind, before = INSERT, None
    elif kind == DELETE and rule.delete_handle_only:
        before = _handle(before or ())
    if oversize:
        after, before = (None if side is None else _handle(side) for side in (after, before))
    sides = {
        side: _side(variant, event, side, columns)
        for side, columns in (("after", after), ("before", before))
        if columns is not None
    }
    key_flag = truth.PRIMARY_KEY if rule.keys == "primary" else truth.HANDLE_KEY
    table_id = event.table_id if event.is_partition or rule.table_id == "physical" else None
    return _present(
        {
            "kind": kind,
            "database": event.database,
            "table": event.table,
            "tableId": table_id if rule.table_id else None,
            "schemaVersion": event.schema_version if rule.schema_version else None,
            **sides,
            "types": _types(rule, event, sides["before" if kind == DELETE else "after"]),
            "keys": sorted(column.name for column in event.columns if column.flags & key_flag)
            or None,
            "checksum": event.checksum if rule.checksum else None,
            "flags": ["handle-key-only"] if oversize else None,
        }
    )


def events(variant: Variant, *, claims: bool = True) -> list[Json]:
    """Everything that a feed carries, in the order in which it is sent to one partition.

    `claims`: claim checks are followed to the whole row.
    """
    found = _unordered(variant, claims=claims)
    return in_table_order(found) if rules(variant).rows_by_table else found


@lru_cache(maxsize=2)
def _unordered(variant: Variant, *, claims: bool = True) -> list[Json]:
    large: frozenset[int] = frozenset()
    if rules(variant).oversize_handle_only or not claims:
        large = _oversize_rows(variant)
    found = []
    row = 0
    for event in truth.events(variant.truth):
        carried = expected(variant, event, oversize=row in large)
        row += event.kind in ROWS
        if carried is not None:
            found.append(carried)
    return found


def shapes(variant: Variant) -> list[str]:
    """For each row that a feed carries, what its wire says of the row's columns, as one text."""
    rule = rules(variant)
    events_of_rows = [event for event in truth.events(variant.truth) if event.kind in ROWS]
    carried = [event for event in _unordered(variant) if event["kind"] in ROWS]
    pairs = zip(events_of_rows, carried, strict=True)
    rows = [row | {"told": _shape(rule, event, row)} for event, row in pairs]
    return [row["told"] for row in (in_table_order(rows) if rule.rows_by_table else rows)]


def _shape(rule: Rules, event: Event, row: Json) -> str:
    names = list(row["types"])
    columns = {column.name: column for column in event.columns}
    if rule.schema_version:
        # Simple's rows say no more of a column than its name and, if it is a TIMESTAMP that is not
        # NULL, its time zone.
        sides = [row[side] for side in ("after", "before") if side in row]
        zones = [name for name in names if columns[name].code == TIMESTAMP]
        said: list[Any] = sorted(names)
        said += [(name, [side[name] is None for side in sides]) for name in zones]
    elif rule.table_id == "partition":  # Open and Craft
        said = [(name, columns[name].code, columns[name].flags) for name in names]
    else:
        said = [(name, row["types"][name], name in row.get("keys", ())) for name in names]
    return repr((row["database"], row["table"], said))


def in_table_order(found: Sequence[Json]) -> list[Json]:
    """Rows between two watermarks or DDLs brought into the order of their tables' names.

    Batching encoders collect rows by table before they write any, so that across tables the order of
    commits is lost; within a table it is not.
    """
    ordered: list[Json] = []
    rows: list[Json] = []
    for event in [*found, {"kind": "end"}]:
        if event["kind"] in ROWS:
            rows.append(event)
        else:
            ordered += sorted(rows, key=lambda row: (row["database"], row["table"]))
            ordered.append(event)
            rows = []
    return ordered[:-1]


def _oversize_rows(variant: Variant) -> frozenset[int]:
    """Which rows of the truth are too large for the limit, by their size where there is none."""
    words = variant.name.split(".")
    words[words.index("hk" if "hk" in words else "cc")] = ""
    plain = {"canal": "ext", "open": "b1"}.get(variant.protocol, "")
    name = ".".join(word for word in words if word and word != "raw")
    if not variant.compression:
        name = ".".join(filter(None, (name, plain)))
    sizes = [
        size
        for message in corpus.messages(name)
        if message.note.startswith("row")
        for size in _sizes(variant, message)
    ]
    return frozenset(row for row, size in enumerate(sizes) if size > MESSAGE_LIMIT)


def _sizes(variant: Variant, message: corpus.Message) -> list[int]:
    if variant.protocol != "open":
        return [len(message.value or b"") + RECORD_OVERHEAD]
    keys, values = split_open(message)
    return [
        len(key) + len(value) + RECORD_OVERHEAD + OPEN_OVERHEAD
        for key, value in zip(keys, values, strict=True)
    ]


def split_open(message: corpus.Message) -> tuple[list[bytes], list[bytes]]:
    """The keys and the values of an Open message."""
    return _lengths_and_parts((message.key or b"")[8:]), _lengths_and_parts(message.value or b"")


def _lengths_and_parts(data: bytes) -> list[bytes]:
    parts = []
    position = 0
    while position < len(data):
        start = position + 8
        position = start + int.from_bytes(data[position:start], "big")
        parts.append(data[start:position])
    return parts
