"""Which tables of a feed are mirrored, and under which names: filter rules and renames.

Rules are TiCDC's own (`shop.*`, `!shop.tmp_*`; the last one that fits decides). A rename names one
table, `shop.orders` = `sales.orders`, or all of a database, `shop.*` = `sales.*`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.changefeed.config.filter import TableFilter
from tidegate.model import ConfigError
from tidegate.sql.tables import Name

ALL = "*"


@dataclass(frozen=True, slots=True)
class Routes:
    """Asked of every table by the name that it has upstream."""

    rules: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    _filter: TableFilter | None = field(init=False, repr=False, compare=False)
    _targets: Mapping[tuple[str, str], Name] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = TableFilter.parse(self.rules, setting="tables.include") if self.rules else None
        object.__setattr__(self, "_filter", found)
        object.__setattr__(self, "_targets", dict(_targets(self.renames)))

    @classmethod
    def parse(cls, rules: Iterable[str], renames: Iterable[str]) -> Routes:
        """From the texts of a command line: rules, and renames as SOURCE=DESTINATION."""
        pairs = {}
        for text in renames:
            source, equals, target = text.partition("=")
            if not equals:
                raise ConfigError("tables.rename", f"{text!r} is not SOURCE=DESTINATION")
            pairs[source.strip()] = target.strip()
        return cls(tuple(rules), pairs)

    def wants(self, name: Name) -> bool:
        """Whether the table is mirrored."""
        return self._filter is None or self._filter.matches(*name)

    def destination(self, name: Name) -> Name:
        """What the table is called in the lake."""
        database, table = name.folded
        exact = self._targets.get((database, table))
        if exact is not None:
            return exact
        whole = self._targets.get((database, ALL))
        return name if whole is None else Name(whole.database, name.table)

    def to_object(self) -> dict[str, Any]:
        """What a lake remembers: with other rules it would hold parts of tables."""
        return {"include": list(self.rules) or ["*.*"], "rename": dict(self.renames)}


def _targets(renames: Mapping[str, str]) -> Iterable[tuple[tuple[str, str], Name]]:
    taken: dict[tuple[str, str], str] = {}
    for source, target in renames.items():
        setting = f"tables.rename.{source}"
        old, new = _name(source, setting), _name(target, setting)
        if (old.table == ALL) != (new.table == ALL):
            raise ConfigError(setting, f"{source} = {target}: both name a table, or both end in .*")
        if new.folded in taken and new.table != ALL:
            raise ConfigError(setting, f"{taken[new.folded]} is renamed to {target} too")
        taken[new.folded] = source
        yield old.folded, new


def _name(text: str, setting: str) -> Name:
    database, dot, table = text.partition(".")
    if not (database and dot and table) or database == ALL:
        raise ConfigError(setting, f"{text!r} is no DATABASE.TABLE and no DATABASE.*")
    return Name(database, table)
