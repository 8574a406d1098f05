"""Carries out the steps of a repair: merges the keys that late rows touch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.lake.apply.changes import Changes, FrameChanges
from tidegate.lake.apply.executor import Applier
from tidegate.lake.apply.plan.steps import Rows
from tidegate.lake.apply.repair.late_log import LateLog
from tidegate.lake.apply.rows import RowReader
from tidegate.lake.changelog.changelog import named
from tidegate.sql.tables import Name


class RepairApplier(Applier):
    """Gives the keys that late rows touch the row of the last of all their changes.

    It reads the rows of all tables concerned, each `since` its first late ones up to an instant. Of
    a table without a key all rows are late: it did not exist.
    """

    _touched = True

    def __init__(
        self,
        *args: Any,
        log: LateLog,
        since: Mapping[Name, int],
        until: int | None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._late_rows = log.rows(since, until)

    def _changes(self, step: Rows, reader: RowReader) -> Changes:
        within = named(*step.name) & self._interval.within(*step.segments)
        return FrameChanges(self._late_rows.where(within.spark()))
