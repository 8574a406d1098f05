"""Counts the rows up to an instant, and sorts out those whose schema has not come.

Rows of the Simple protocol may arrive before the schema they were written with. The step then ends
before the first of them. A schema that cannot come any more stops its table instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.changefeed.receive.schema_cache import SchemaKey
from tidegate.lake.apply.plan.steps import PastEffect, Statement
from tidegate.lake.apply.plan.tables import Status, Table
from tidegate.lake.changelog.changelog import OF_ROWS, Changelog, Group
from tidegate.lake.changelog.interval import Interval
from tidegate.lake.job.step.session import MirrorSession
from tidegate.model import TableSchema
from tidegate.model.tso import LOGICAL_BITS
from tidegate.sql.ddl import ChangeKind
from tidegate.sql.ddl_names import plain_change
from tidegate.sql.tables import Name

_SCHEMA_PATIENCE_MS = 600_000
"""How much of upstream time may pass until rows have their schema. TiCDC sends each schema every
two minutes unless the changefeed says otherwise."""

SCHEMA_LOST = (
    "The schema of its rows (version {version}) is not in the feed and does not come any more: the "
    "feed began after it was sent. Mirror the feed from an earlier start, or mirror a new one."
)


class PendingRows:
    """The rows that the tables do not have yet."""

    def __init__(self, session: MirrorSession) -> None:
        self._session = session
        self._state = session.state
        self.waiting: dict[SchemaKey, int] = {}
        """How many rows wait for which schema."""

    def up_to(
        self, changelog: Changelog, statements: Sequence[Statement], target: int
    ) -> tuple[Interval, list[Statement | PastEffect], list[Group]]:
        """The rows up to an instant, counted, and the statements that cut them."""
        cuts: list[Statement | PastEffect] = list(statements)
        interval = self._interval(target, cuts)
        groups = changelog.groups(interval)
        past = self._past_of(groups)
        if past:
            # Rows from before these statements arrived after them.
            cuts = sorted([*past, *statements], key=lambda each: each.commit_ts)
            interval = self._interval(target, cuts)
            groups = changelog.groups(interval)
        self._session.schemas.learn_shapes(changelog, groups)
        return interval, cuts, groups

    def _interval(self, target: int, statements: Sequence[Statement | PastEffect]) -> Interval:
        cuts = (statement.commit_ts for statement in statements)
        gate, offsets = self._session.gate, self._state.offsets
        release = gate.release(target if gate.has_watermarks else None)
        return Interval.released(release, OF_ROWS, offsets.beyond(), offsets.last, cuts)

    def _past_of(self, groups: Sequence[Group]) -> list[PastEffect]:
        """What was done earlier to tables of which older rows have come only now.

        Only a feed without watermarks remembers it. A rename leads to other names.
        """
        first: dict[tuple[str, str], int] = {}
        for group in groups:
            name = Name(group.database, group.table).folded
            first[name] = min(group.first_ts, first.get(name, group.first_ts))
        past = []
        for each in self._state.past:
            since = first.get(each.name.folded)
            if since is not None and since <= each.commit_ts:
                past.append(each)
                if each.new_name is not None:
                    name = each.new_name.folded
                    first[name] = min(since, first.get(name, since))
        return past

    # --- rows without a schema --------------------------------------------------------------------

    def without_lost(
        self, groups: Sequence[Group], statements: Sequence[Statement], target: int
    ) -> list[Group]:
        """The rows whose schema is there or may yet come; the tables of others are stopped."""
        kept = []
        dropped = _dropped_databases(statements)
        for group in groups:
            key = self._session.schemas.missing(group)
            if key is not None and self._is_of_stopped(group):
                continue
            is_dropped = dropped.get(group.database.lower(), 0) >= group.first_ts
            if key is None or not (is_dropped or self._is_lost(key, group, target)):
                kept.append(group)
            else:
                self._stop_unreadable(key, group)
        return kept

    def before_waiting(self, groups: Iterable[Group]) -> int | None:
        """The last instant before the first row whose schema has not come yet; None: none waits."""
        self.waiting = {}
        first = None
        for group in groups:
            key = self._session.schemas.missing(group)
            if key is not None:
                self.waiting[key] = self.waiting.get(key, 0) + group.rows
                first = group.first_ts if first is None else min(first, group.first_ts)
        return None if first is None else first - 1

    def _is_of_stopped(self, group: Group) -> bool:
        """Whether rows are of a table that is stopped, and before any statement of the step.

        Their schema need not come: none of them is applied.
        """
        table = self._state.tables.get(Name(group.database, group.table).folded)
        return table is not None and table.status is Status.STOPPED and group.segment == 0

    def _is_lost(self, key: SchemaKey, group: Group, target: int) -> bool:
        """Whether a schema cannot come any more: a later one is there, or it is overdue."""
        overdue = group.first_ts + (_SCHEMA_PATIENCE_MS << LOGICAL_BITS)
        return self._state.cache.is_lost(key, group.first_ts) or overdue < target

    def _stop_unreadable(self, key: SchemaKey, group: Group) -> None:
        name = Name(key.database, key.table)
        if not self._session.settings.routes.wants(name):
            return
        tables = self._state.tables
        table = tables.get(name.folded)
        if table is None:
            schema = TableSchema(database=name.database, table=name.table)
            table = tables[name.folded] = Table(name, schema)
        if table.status is Status.MIRRORED:
            table.stop(SCHEMA_LOST.format(version=key.version), group.first_ts)
            self._session.stopped.append(name)


def _dropped_databases(statements: Iterable[Statement]) -> dict[str, int]:
    """The databases that statements drop, in lower case, with the last commit_ts of that."""
    dropped = {}
    for each in statements:
        change = plain_change(each.id.query, each.id.database)
        if change.kind is ChangeKind.DATABASE_DROPPED:
            dropped[(change.database or "").lower()] = each.commit_ts
    return dropped
