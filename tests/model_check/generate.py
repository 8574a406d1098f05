"""Random cases: operations that fit each other, a changefeed's knobs, and two cuts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.model_check.history import KINDS, Op, Upstream
from tests.model_check.oracle import Case
from tests.model_check.sender import Cut, Feed

DATABASES = ("d", "e", "F")
TABLES = ("t", "u", "W")


def random_case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    feed = random_feed(rng)
    ops = _Generator(rng, feed).ops()
    return Case(tuple(ops), feed, random_cuts(rng, feed))


def random_feed(rng: random.Random) -> Feed:
    """A changefeed with settings that TiCDC accepts."""
    kind = rng.choices(
        ("canal-ext", "open-protocol", "simple", "canal", "craft"), (30, 30, 18, 12, 10)
    )[0]
    options: dict[str, Any] = {}
    if kind == "canal-ext":
        options["enable_tidb_extension"] = True
    if kind in ("canal", "canal-ext"):
        _maybe(rng, options, 0.15, content_compatible=True, only_output_updated_columns=True)
        _maybe(rng, options, 0.15, only_output_updated_columns=True)
    if kind == "open-protocol":
        _maybe(rng, options, 0.15, output_old_value=False)
        if options.get("output_old_value", True):
            _maybe(rng, options, 0.2, only_output_updated_columns=True)
        _maybe(rng, options, 0.2, max_batch_size=1)
    if kind in ("canal-ext", "open-protocol"):
        _maybe(rng, options, 0.1, delete_only_output_handle_key_columns=True)
    if kind == "simple":
        _maybe(rng, options, 0.3, send_all_bootstrap_at_start=True)
        _maybe(rng, options, 0.2, send_bootstrap_interval_in_sec=0)
    protocol = "canal-json" if kind.startswith("canal") else kind
    per_table = kind != "canal" and rng.random() < 0.3
    return Feed(
        protocol=protocol,
        options=options,
        generation="classic" if kind == "craft" or rng.random() < 0.5 else "new",
        partitions=1 if kind == "canal" else rng.choice((1, 1, 2, 3)),
        dispatch=rng.choice(("default", "table", "index-value", "ts")),
        topic_per_table=per_table,
        late_topics=per_table and rng.random() < 0.2,
    )


def _maybe(rng: random.Random, options: dict[str, Any], chance: float, **settings: Any) -> None:
    if rng.random() < chance:
        options |= settings


def random_cuts(rng: random.Random, feed: Feed) -> tuple[Cut, ...]:
    """The whole feed at once, and another cut."""
    skew = feed.has_watermarks and rng.random() < 0.5
    count = rng.choices((0, 2, 3, 5, 9), (1, 3, 3, 3, 3))[0]
    seed, restarts = rng.randrange(1000), rng.random() < 0.3
    return Cut(), Cut(count, seed, skew, restarts, rng.choices((0, 4, 12), (6, 2, 2))[0])


class _Generator:
    """Makes the operations of one history, playing it along."""

    def __init__(self, rng: random.Random, feed: Feed) -> None:
        self._rng = rng
        self._feed = feed
        self._upstream = Upstream()
        self._ops: list[Op] = []
        self._columns = 0
        self._starts_late = rng.random() < 0.3
        kinds = [kind for kind in KINDS if kind != "none" or self._allows_keyless]
        # Most histories use few kinds, so that the same thing happens to a table several times.
        self._kinds = rng.sample(kinds, rng.randint(1, 4))
        # Few names make tables of one name in several databases.
        self._names = rng.sample(TABLES, rng.choice((1, 2, 3, 3)))
        self._statements = rng.choice((0.15, 0.35, 0.6))
        # For the same reason many have only a few kinds of statements.
        self._actions = self._all_actions()
        if rng.random() < 0.7:
            self._actions = rng.sample(self._actions, rng.randint(1, 5))

    @property
    def _allows_keyless(self) -> bool:
        """A keyless row that changed cannot be found without the old one, and none can say so."""
        options = self._feed.options
        return bool(options.get("output_old_value", True)) and not options.get(
            "delete_only_output_handle_key_columns"
        )

    def ops(self) -> list[Op]:
        rng = self._rng
        for database in DATABASES[: rng.choice((1, 2, 2, 3))]:
            self._play(["create_database", database])
        for _ in range(rng.randint(1, 3)):
            self._create()
        start = rng.randint(1, 10) if self._starts_late else None
        # Few operations mostly: what goes wrong in a long history has gone wrong in a short one.
        for number in range(rng.choices((4, 8, 12, 20, 30), (4, 4, 3, 2, 1))[0]):
            if number == start:
                self._play(["start"])
            self._one()
        return self._ops

    def _play(self, op: Op) -> None:
        if self._upstream.play(op):
            self._ops.append(op)

    def _one(self) -> None:
        rng = self._rng
        if rng.random() < 0.25:
            self._play(["mark", rng.choice((0, 0, 1))])
        if rng.random() < 0.05:
            self._signal()
        if rng.random() < self._statements:
            self._statement()
        else:
            self._play(["txn", [self._change() for _ in range(rng.choice((1, 1, 2, 4)))]])

    def _signal(self) -> None:
        rng, feed = self._rng, self._feed
        if feed.partitions > 1 and rng.random() < 0.3:
            self._play(["partitions", feed.partitions + 1])
            return
        generation = feed.generation
        if generation == "classic" and feed.protocol != "craft" and rng.random() < 0.4:
            generation = "new"
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            lost = rng.randrange(1, 1000) if feed.has_watermarks and rng.random() < 0.5 else 0
            self._play(["restart", rng.choice((0, 0, 1, 2)), generation, lost])

    # --- rows -------------------------------------------------------------------------------------

    def _change(self) -> Op:
        rng = self._rng
        database, name = self._table()
        kind = rng.choices(("insert", "update", "rekey", "delete"), (5, 3, 2, 2))[0]
        row = [] if kind == "insert" else [rng.randrange(100)]
        seed = [] if kind == "delete" else [rng.randrange(10_000)]
        return [kind, database, name, *row, *seed]

    def _table(self) -> tuple[str, str]:
        names = sorted(self._upstream.tables)
        return self._rng.choice(names) if names else ("d", "t")

    # --- statements -------------------------------------------------------------------------------

    def _all_actions(self) -> list[tuple[int, Callable[[], None]]]:
        """The kinds of statements, with their weights."""
        return [
            (10, self._create),
            (8, self._drop),
            (3, self._recover),
            (8, self._truncate),
            (12, self._rename),
            (8, self._rename_many),
            (12, self._column),
            (10, self._key),
            (8, self._partition),
            (2, self._drop_database),
            (2, self._create_database),
            (5, self._create_like),
            (4, self._exchange),
            (2, self._view),
            (1, self._flashback),
        ]

    def _statement(self) -> None:
        weights, actions = zip(*self._actions, strict=True)
        self._rng.choices(actions, weights)[0]()

    def _flip(self) -> bool:
        return self._rng.random() < 0.5

    def _create(self, kind: str | None = None) -> None:
        rng = self._rng
        known = sorted(self._upstream.databases) or ["d"]
        kind = kind or rng.choice(self._kinds)
        self._play(["create", rng.choice(known), rng.choice(self._names), kind, self._flip()])

    def _create_like(self) -> None:
        rng, other = self._rng, self._table()
        database = rng.choice(sorted(self._upstream.databases) or ["d"])
        self._play(["create_like", database, rng.choice(self._names), [*other]])

    def _exchange(self) -> None:
        parts, plain = self._partitioned(), self._fitting()
        if parts and plain:
            rng = self._rng
            self._play(["exchange", *rng.choice(parts), rng.randrange(3), [*rng.choice(plain)]])
        elif parts:
            self._create("narrow")
        else:
            self._create("partitioned")

    def _partitioned(self) -> list[tuple[str, str]]:
        return sorted(name for name, table in self._upstream.tables.items() if table.partitions)

    def _fitting(self) -> list[tuple[str, str]]:
        """The tables with the columns of a partition."""
        columns = [self._upstream.tables[name].columns for name in self._partitioned()]
        tables = self._upstream.tables.items()
        return sorted(n for n, each in tables if not each.partitions and each.columns in columns)

    def _view(self) -> None:
        self._play(["view", self._rng.choice(DATABASES), "v", self._flip()])

    def _flashback(self) -> None:
        self._play(["flashback"])

    def _create_database(self) -> None:
        self._play(["create_database", self._rng.choice(DATABASES)])

    def _drop_database(self) -> None:
        self._play(["drop_database", self._rng.choice(DATABASES)])

    def _drop(self) -> None:
        self._play(["drop", *self._table()])

    def _recover(self) -> None:
        dropped = sorted(self._upstream.dropped)
        if dropped and self._flip():
            name = self._rng.choice((*self._names, "x"))
            self._play(["flashback_table", *self._rng.choice(dropped), name])
        elif dropped:
            self._play(["recover", *self._rng.choice(dropped)])
        else:
            self._drop()

    def _truncate(self) -> None:
        self._play(["truncate", *self._table(), self._flip()])

    def _rename(self) -> None:
        rng = self._rng
        namesakes = self._namesakes()
        old = rng.choice(namesakes) if namesakes and rng.random() < 0.4 else self._table()
        database = rng.choice(sorted(self._upstream.databases) or ["d"])
        forms = ["rename", "alter", "rename qualified", "alter qualified"]
        # Of tables that the feed has not shown, nobody can tell which one a bare name means.
        if self._starts_late and database != old[0]:
            forms = forms[2:]
        self._play(["rename", *old, database, rng.choice((*self._names, "x")), rng.choice(forms)])

    def _namesakes(self) -> list[tuple[str, str]]:
        """The tables whose name another database has, too."""
        names = sorted(self._upstream.tables)
        tables = [table for _, table in names]
        return [name for name in names if tables.count(name[1]) > 1]

    def _rename_many(self) -> None:
        rng = self._rng
        if self._feed.generation == "new" and rng.random() < 0.6:
            one, other = self._table(), self._table()
            tmp = one[0], "tmp"
            pairs = [[*one, *tmp], [*other, *one], [*tmp, *other]]
            self._play(["rename_many", pairs])
            return
        database = rng.choice(sorted(self._upstream.databases) or ["d"])
        first = self._table()
        pairs = [[*first, database, "x"], [*self._table(), *first]]
        if rng.random() < 0.3:
            pairs[1] = [*self._table(), database, "y"]
        self._play(["rename_many", pairs, True])

    def _column(self) -> None:
        rng, table, n = self._rng, self._table(), self._rng.randrange(10)
        self._columns += 1
        of = rng.choice(("int", "bigint", "varchar(20)", "double"))
        how = rng.choice(("null", "default", "solid"))
        added = ["add_column", *table, f"c{self._columns}", of, how, rng.randrange(5), self._flip()]
        ops: list[Op] = [
            added,
            ["drop_column", *table, n, self._flip()],
            ["rename_column", *table, n, f"r{self._columns}", self._flip()],
            ["modify_column", *table, n, rng.randrange(2), self._flip()],
        ]
        self._play(rng.choice(ops))

    def _key(self) -> None:
        rng, table = self._rng, self._table()
        if rng.random() < 0.5:
            n = rng.randrange(3)
            if self._keeps_key(table, n) or (self._allows_keyless and rng.random() < 0.3):
                self._play(["drop_key", *table, n, rng.randrange(2)])
            return
        self._play(["add_key", *table, rng.randrange(6), self._flip()])

    def _keeps_key(self, name: tuple[str, str], n: int) -> bool:
        """Whether a table has a key without its n-th index."""
        table = self._upstream.tables.get(name)
        if table is None or not table.indexes:
            return False
        n %= len(table.indexes)
        return bool(replace(table, indexes=table.indexes[:n] + table.indexes[n + 1 :]).handle)

    def _partition(self) -> None:
        parts = self._partitioned()
        if parts:
            kind = self._rng.choice(("truncate_partition", "drop_partition"))
            self._play([kind, *self._rng.choice(parts), self._rng.randrange(3)])
        else:
            self._create("partitioned")
