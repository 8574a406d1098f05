"""`orders`: a shop with foreign keys, every column type, and a schema that changes as it runs.

| table | |
|---|---|
| `customers` | a primary key, and a unique key that changes now and then |
| `products` | a text as its key; JSON, SET and binary columns |
| `orders` | refers to `customers`; an unsigned key |
| `order_items` | refers to `orders` and `products`; a key of two columns, one of which changes |
| `coupons` | no primary key: a unique key identifies its rows, and changes |
| `everything` | a column of every type |
| `audit_log` | made, truncated, renamed and dropped on the way |
| `reviews` | made on the way |

The statements come at fixed parts of the whole, whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from random import Random
from typing import TypeVar

from tidegate.workload import everything
from tidegate.workload.bank import money
from tidegate.workload.clock import DEFAULT_RATE, datetime_ms_text, datetime_text
from tidegate.workload.truth import Row
from tidegate.workload.upstream import Scripted, Table, Upstream

_T = TypeVar("_T")

DATABASE = "shop"
MOST_ORDERS = 20_000
"""How many orders there are at a time at most: older ones are deleted."""

_CREATE = {
    "customers": "CREATE TABLE `customers` (`id` BIGINT PRIMARY KEY AUTO_INCREMENT,"
    "`email` VARCHAR(80) NOT NULL,`name` VARCHAR(40) NOT NULL,"
    "`tier` ENUM('basic','plus','gold') NOT NULL DEFAULT _UTF8MB4'basic',"
    "`balance` DECIMAL(12,2) NOT NULL,`created_at` TIMESTAMP NOT NULL,`note` TEXT,"
    "UNIQUE `by_email`(`email`))",
    "products": "CREATE TABLE `products` (`sku` VARCHAR(20) PRIMARY KEY,"
    "`title` VARCHAR(100) NOT NULL,`price` DECIMAL(10,2) NOT NULL,`stock` INT NOT NULL,"
    "`legacy_code` SMALLINT UNSIGNED,`tags` SET('new','sale','eco','heavy'),`attrs` JSON,"
    "`image` VARBINARY(64),`discontinued` TINYINT(1) NOT NULL DEFAULT 0)",
    "orders": "CREATE TABLE `orders` (`id` BIGINT UNSIGNED PRIMARY KEY,"
    "`customer_id` BIGINT NOT NULL,`status` ENUM('new','paid','sent','done') NOT NULL,"
    "`total` DECIMAL(10,2) NOT NULL,`placed_at` DATETIME(3) NOT NULL,`comment` VARCHAR(40),"
    "CONSTRAINT FOREIGN KEY (`customer_id`) REFERENCES `customers`(`id`))",
    "order_items": "CREATE TABLE `order_items` (`order_id` BIGINT UNSIGNED NOT NULL,"
    "`line` SMALLINT NOT NULL,`sku` VARCHAR(20) NOT NULL,`quantity` INT UNSIGNED NOT NULL,"
    "`price` DECIMAL(10,2) NOT NULL,`gift` BIT(1),"
    "PRIMARY KEY(`order_id`, `line`) /*T![clustered_index] CLUSTERED */,"
    "CONSTRAINT FOREIGN KEY (`order_id`) REFERENCES `orders`(`id`),"
    "CONSTRAINT FOREIGN KEY (`sku`) REFERENCES `products`(`sku`))",
    "coupons": "CREATE TABLE `coupons` (`code` VARCHAR(16) NOT NULL,`customer_id` BIGINT,"
    "`percent` FLOAT NOT NULL,`expires_on` DATE,UNIQUE `by_code`(`code`))",
    "everything": everything.CREATE,
}
_AUDIT_LOG = (
    "CREATE TABLE `audit_log` (`id` BIGINT PRIMARY KEY,`at` DATETIME(6) NOT NULL,"
    "`who` VARCHAR(30),`what` JSON)"
)
_REVIEWS = (
    "CREATE TABLE `reviews` (`sku` VARCHAR(20) NOT NULL,`customer_id` BIGINT NOT NULL,"
    "`stars` TINYINT UNSIGNED NOT NULL,`body` TEXT,"
    "PRIMARY KEY(`sku`, `customer_id`) /*T![clustered_index] NONCLUSTERED */,"
    "CONSTRAINT FOREIGN KEY (`sku`) REFERENCES `products`(`sku`))"
)
_MU = 1 + list(everything.COLUMNS).index("mu")
# At which part of the whole, the statement, and what it does to a row.
_ALTERATIONS: tuple[tuple[float, str, Callable[[Row], Row] | None], ...] = (
    (
        0.10,
        "ALTER TABLE `customers` ADD COLUMN `phone` VARCHAR(20)",
        lambda row: (*row, None),
    ),
    (
        0.15,
        "ALTER TABLE `customers` ADD COLUMN `points` INT NOT NULL DEFAULT 100 AFTER `name`",
        lambda row: (*row[:3], "100", *row[3:]),
    ),
    (0.20, "ALTER TABLE `orders` ADD INDEX `by_status`(`status`)", None),
    (0.25, "ALTER TABLE `orders` MODIFY COLUMN `total` DECIMAL(14,2) NOT NULL", None),
    (0.30, "ALTER TABLE `customers` MODIFY COLUMN `points` BIGINT NOT NULL DEFAULT 100", None),
    (0.40, "ALTER TABLE `orders` MODIFY COLUMN `comment` VARCHAR(120)", None),
    (0.45, "ALTER TABLE `customers` RENAME COLUMN `phone` TO `mobile`", None),
    (
        0.50,
        "ALTER TABLE `products` DROP COLUMN `legacy_code`",
        lambda row: (*row[:4], *row[5:]),
    ),
    (0.65, "ALTER TABLE `orders` DROP INDEX `by_status`", None),
    (
        0.70,
        "ALTER TABLE `products` ADD COLUMN `weight` DOUBLE, ADD COLUMN `origin` CHAR(2) "
        "DEFAULT _UTF8MB4'de' FIRST, DROP COLUMN `discontinued`",
        lambda row: ("de", *row[:-1], None),
    ),
    (
        0.80,
        "ALTER TABLE `everything` ADD COLUMN `seen` TIMESTAMP NULL "
        "DEFAULT _UTF8MB4'2020-01-01 00:00:00'",
        lambda row: (*row, "2020-01-01 00:00:00"),
    ),
    (
        0.85,
        "ALTER TABLE `customers` MODIFY COLUMN `tier` "
        "ENUM('basic','plus','gold','platinum') NOT NULL DEFAULT _UTF8MB4'basic'",
        None,
    ),
    (
        0.90,
        "ALTER TABLE `everything` DROP COLUMN `mu`",
        lambda row: (*row[:_MU], *row[_MU + 1 :]),
    ),
    (0.95, "CREATE INDEX `by_tier` ON `customers` (`tier`, `created_at`)", None),
)
_NAMES = ("Ada", "Grace", "Søren", "Zoë", "李娜", "Владимир", "O'Neil", 'Ann "Bo" Lee')
_NOTES = (None, "", "prefers mail", "vip\nsince 2019", "🙂", "a <b> & 'c'", None, None)
_ATTRS = (None, "{}", '{"color": "red", "size": 4}', '["a", "b"]', '{"tags": [], "w": 1.5}')
_IMAGES = (None, "", "AAECAw==", "/9j/4AAQSkZJRg==", "iVBORw0KGgo=")
_MOST_CUSTOMERS = 50_000
_MOST_PRODUCTS = 1000
_MOST_AUDITS = 20_000
_DAY_MS = 86_400_000
_SEEDS = 40  # customers and products, each, to begin with
_MOST_ROWS = 16  # of one transaction


class Orders(Scripted):
    """The shop; `live` is about how many orders there are at a time."""

    name = "orders"

    def __init__(
        self, rows: int, seed: int, *, rate: int = DEFAULT_RATE, live: int = MOST_ORDERS
    ) -> None:
        super().__init__(rows, seed, rate)
        self.live = max(10, min(live, rows // 12))

    def steps(self, upstream: Upstream) -> Iterator[None]:
        upstream.create_database(DATABASE)
        yield
        tables = {}
        for name, query in _CREATE.items():
            tables[name] = upstream.create_table(DATABASE, query)
            yield
        shop = _Shop(upstream, tables, Random(self.seed), self.live)
        for _ in range(_SEEDS):
            if upstream.room >= 2:
                shop.stock_up()
                yield
        for part, run in sorted(shop.statements(), key=itemgetter(0)):
            while upstream.changes < part * self.rows and upstream.room >= _MOST_ROWS:
                shop.serve()
                yield
            run()
            yield
        while upstream.room >= _MOST_ROWS:
            shop.serve()
            yield
        while upstream.room:
            shop.note()
            yield


class _Shop:
    """Does one transaction after the other."""

    def __init__(
        self, upstream: Upstream, tables: dict[str, Table], chance: Random, live: int
    ) -> None:
        self._upstream = upstream
        self._random = chance.random
        self._customers = tables["customers"]
        self._products = tables["products"]
        self._orders = tables["orders"]
        self._items = tables["order_items"]
        self._coupons = tables["coupons"]
        self._everything = tables["everything"]
        self._audit_log: Table | None = None
        self._reviews: Table | None = None
        self._stock = everything.Stock(chance)
        self._live = live
        self._skus: list[str] = []
        self._codes: list[str] = []
        self._specimens: list[str] = []
        self._lines: dict[str, list[str]] = {}
        self._last_customer = 0
        self._last_email = 0
        self._last_order = self._first_order = 1000
        self._last_code = 0
        self._last_specimen = 0
        self._last_audit = 0
        # What makes the value of each column that a customer may have: they come and go.
        self._of_customer: dict[str, Callable[[], str | None]] = {
            "id": lambda: str(self._last_customer),
            "email": self._email,
            "name": lambda: self._one_of(_NAMES),
            "tier": lambda: "1",
            "balance": lambda: money(int(self._random() * 1_000_000) - 100_000),
            "created_at": self._now,
            "note": lambda: self._one_of(_NOTES),
            "phone": self._phone,
            "mobile": self._phone,
            "points": lambda: str(int(self._random() * 5000)),
        }
        self._of_product: dict[str, Callable[[], str | None]] = {
            "sku": lambda: f"SKU-{len(self._skus):05}",
            "title": lambda: f"thing {int(self._random() * 1000)}, {self._one_of(_NAMES)}’s",
            "price": lambda: money(int(self._random() * 99_999) + 1),
            "stock": lambda: str(int(self._random() * 10_000)),
            "legacy_code": lambda: str(int(self._random() * 65_536)),
            "tags": lambda: str(int(self._random() * 16)),
            "attrs": lambda: self._one_of(_ATTRS),
            "image": lambda: self._one_of(_IMAGES),
            "discontinued": lambda: str(int(self._random() * 2)),
            "weight": lambda: str(int(self._random() * 1000) / 8).removesuffix(".0"),
            "origin": lambda: self._one_of(("fr", "it", "jp", None)),
        }

    # --- transactions -----------------------------------------------------------------------------

    def serve(self) -> None:
        """One transaction, of which chance says what it is."""
        chance = self._random()
        if len(self._lines) > self._live:
            self._archive_order()
        elif chance < 0.25 or not self._lines:
            self._place_order()
        elif chance < 0.55:
            self._advance_order()
        elif chance < 0.62:
            self._change_items()
        elif chance < 0.74:
            self._change_customer()
        elif chance < 0.78:
            self.stock_up()
        elif chance < 0.88:
            self._change_everything()
        elif chance < 0.95:
            self._change_coupons()
        elif chance < 0.97 and self._reviews is not None:
            self._review(self._reviews)
        elif self._audit_log is not None:
            self._audit(self._audit_log)
        else:
            self.note()

    def stock_up(self) -> None:
        """Another customer and another product, as long as there are few."""
        if self._last_customer == _MOST_CUSTOMERS:
            self.note()
            return
        self._upstream.begin()
        self._last_customer += 1
        self._upstream.insert(self._customers, self._made(self._customers, self._of_customer))
        if len(self._skus) < _MOST_PRODUCTS:
            row = self._made(self._products, self._of_product)
            self._upstream.insert(self._products, row)
            self._skus.append(self._products.key(row))

    def note(self) -> None:
        """A change of a single row."""
        self._upstream.begin()
        if not self._last_customer:
            self._last_customer += 1
            self._upstream.insert(self._customers, self._made(self._customers, self._of_customer))
            return
        row = self._customer()
        place = self._customers.place["note"]
        self._upstream.update(self._customers, row, _with(row, place, self._one_of(_NOTES)))

    def _place_order(self) -> None:
        self._upstream.begin()
        self._last_order += 1
        key = str(self._last_order)
        lines = []
        cents = 0
        place = self._products.place["price"]
        for line in range(1, 2 + int(self._random() * 4)):
            sku = self._one_of(self._skus)
            quantity = 1 + int(self._random() * 5)
            price = self._products.rows[sku][place]
            cents += int((price or "0").replace(".", "")) * quantity
            gift = (None, "0", "1")[int(self._random() * 3)]
            lines.append((key, str(line), sku, str(quantity), price, gift))
        customer = str(1 + int(self._random() * self._last_customer))
        at = datetime_ms_text(self._upstream.now_ms)
        comment = self._one_of(_NOTES)
        self._upstream.insert(self._orders, (key, customer, "1", money(cents), at, comment))
        for item in lines:
            self._upstream.insert(self._items, item)
        self._lines[key] = [item[1] for item in lines]
        self._take_from_stock(lines[0][2])

    def _take_from_stock(self, sku: str) -> None:
        row = self._products.rows[sku]
        place = self._products.place["stock"]
        left = int(row[place] or "0") - 1
        self._upstream.update(self._products, row, _with(row, place, str(left)))

    def _order(self) -> str:
        """An order that is there: the newest are the busiest."""
        first, count = self._first_order + 1, self._last_order - self._first_order
        while True:
            key = str(first + int(self._random() ** 0.5 * count))
            if key in self._lines:
                return key

    def _advance_order(self) -> None:
        self._upstream.begin()
        row = self._orders.rows[self._order()]
        status = str(int(row[2] or "0") % 4 + 1)
        comment = self._one_of(_NOTES) if self._random() < 0.2 else row[5]
        self._upstream.update(self._orders, row, (*row[:2], status, *row[3:5], comment))

    def _change_items(self) -> None:
        """Another quantity; or another line, which is part of the key."""
        self._upstream.begin()
        key = self._order()
        lines = self._lines[key]
        place = int(self._random() * len(lines))
        row = self._items.rows[key, lines[place]]
        if self._random() < 0.3:
            lines[place] = str(max(map(int, lines)) + 1)
            after = _with(row, 1, lines[place])
        else:
            after = _with(row, 3, str(1 + int(self._random() * 50)))
        self._upstream.update(self._items, row, after)

    def _archive_order(self) -> None:
        """The oldest order goes, with all its items."""
        self._upstream.begin()
        self._first_order += 1
        key = str(self._first_order)
        for line in self._lines.pop(key):
            self._upstream.delete(self._items, self._items.rows[key, line])
        self._upstream.delete(self._orders, self._orders.rows[key])

    def _change_customer(self) -> None:
        self._upstream.begin()
        row = self._customer()
        name = self._one_of(("email", "tier", "balance", "note", "phone", "mobile", "points"))
        place = self._customers.place.get(name)
        if place is None:
            name, place = "balance", self._customers.place["balance"]
        value = self._tier() if name == "tier" else self._of_customer[name]()
        self._upstream.update(self._customers, row, _with(row, place, value))

    def _change_everything(self) -> None:
        self._upstream.begin()
        known = self._specimens
        chance = self._random()
        if len(known) < 10 or (chance < 0.4 and len(known) < self._live):
            self._last_specimen += 1
            known.append(str(self._last_specimen))
            self._upstream.insert(self._everything, self._stock.row(known[-1]))
            return
        place = int(self._random() * len(known))
        row = self._everything.rows[known[place]]
        if chance < 0.9:
            self._upstream.update(self._everything, row, self._stock.changed(row))
        else:
            known[place] = known[-1]
            known.pop()
            self._upstream.delete(self._everything, row)

    def _change_coupons(self) -> None:
        """A new one, one under another code (which is the key), or one that is used up."""
        self._upstream.begin()
        known = self._codes
        chance = self._random()
        if len(known) < 5 or (chance < 0.5 and len(known) < self._live):
            known.append(self._code())
            owner = None if chance < 0.1 else str(1 + int(self._random() * self._last_customer))
            percent = str(int(self._random() * 200) / 4).removesuffix(".0")
            expires = None if chance < 0.2 else datetime_text(self._day())[:10]
            self._upstream.insert(self._coupons, (known[-1], owner, percent, expires))
            return
        place = int(self._random() * len(known))
        row = self._coupons.rows[known[place]]
        if chance < 0.75:
            known[place] = self._code()
            self._upstream.update(self._coupons, row, (known[place], *row[1:]))
        else:
            known[place] = known[-1]
            known.pop()
            self._upstream.delete(self._coupons, row)

    def _review(self, reviews: Table) -> None:
        self._upstream.begin()
        sku = self._one_of(self._skus)
        customer = str(1 + int(self._random() * min(self._last_customer, 100)))
        row = (sku, customer, str(1 + int(self._random() * 5)), self._one_of(_NOTES))
        before = reviews.rows.get((sku, customer))
        if before is None:
            self._upstream.insert(reviews, row)
        else:
            self._upstream.update(reviews, before, row)

    def _audit(self, log: Table) -> None:
        self._upstream.begin()
        if len(log.rows) == _MOST_AUDITS:
            self._upstream.delete(log, next(iter(log.rows.values())))
            return
        self._last_audit += 1
        at = f"{datetime_ms_text(self._upstream.now_ms)}{int(self._random() * 1000):03}"
        what = f'{{"seen": {int(self._random() * 1000)}}}'
        who = None if self._random() < 0.2 else self._one_of(_NAMES)
        self._upstream.insert(log, (str(self._last_audit), at, who, what))

    # --- statements -------------------------------------------------------------------------------

    def statements(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """What changes the schema, and at which part of the whole."""
        for part, query, rewrite in _ALTERATIONS:
            yield part, partial(self._alter, query, rewrite)
        yield 0.05, self._make_audit_log
        yield 0.35, self._truncate_audit_log
        yield 0.55, self._make_reviews
        yield 0.60, self._rename_audit_log
        yield 0.75, self._drop_audit_log

    def _alter(self, query: str, rewrite: Callable[[Row], Row] | None) -> None:
        name = next(name for name in _CREATE if f"`{name}`" in query)
        table = self._upstream.tables[DATABASE, name]
        self._upstream.alter(table, query, rewrite)
        if table is self._everything and rewrite is not None:
            self._stock.rewrite(rewrite)

    def _make_audit_log(self) -> None:
        self._audit_log = self._upstream.create_table(DATABASE, _AUDIT_LOG)

    def _truncate_audit_log(self) -> None:
        assert self._audit_log is not None
        self._upstream.truncate(self._audit_log)

    def _rename_audit_log(self) -> None:
        assert self._audit_log is not None
        self._upstream.rename(self._audit_log, "audit_archive")

    def _drop_audit_log(self) -> None:
        assert self._audit_log is not None
        self._upstream.drop(self._audit_log)
        self._audit_log = None

    def _make_reviews(self) -> None:
        self._reviews = self._upstream.create_table(DATABASE, _REVIEWS)

    # --- values -----------------------------------------------------------------------------------

    def _one_of(self, values: Sequence[_T]) -> _T:
        return values[int(self._random() * len(values))]

    def _made(self, table: Table, makers: dict[str, Callable[[], str | None]]) -> Row:
        return tuple(makers[name]() for name in table.place)

    def _customer(self) -> Row:
        return self._customers.rows[str(1 + int(self._random() * self._last_customer))]

    def _email(self) -> str:
        self._last_email += 1
        return f"{int(self._random() * 1e6):06}.{self._last_email}@shop.example"

    def _phone(self) -> str | None:
        number = int(self._random() * 1e9)
        return None if number % 3 == 0 else f"+49 {number:09}"

    def _tier(self) -> str:
        column = self._customers.schema.column("tier")
        assert column is not None
        return str(1 + int(self._random() * len(column.elements)))

    def _code(self) -> str:
        self._last_code += 1
        return f"C{self._last_code:07}-{int(self._random() * 1000):03}"

    def _now(self) -> str:
        return datetime_text(self._upstream.now_ms // 1000 * 1000)

    def _day(self) -> int:
        today = self._upstream.now_ms // _DAY_MS
        return (today + int(self._random() * 400)) * _DAY_MS


def _with(row: Row, place: int, value: str | None) -> Row:
    return (*row[:place], value, *row[place + 1 :])
