"""Whether the reason that a table gives for its state fits what happened to that table.

Each kind of reason names the events of the history, or the settings of the feed, that justify it. A
reason of no kind is wrong as well: a new one belongs in this table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.model_check.history import AMBIGUOUS, Name, TableState, Upstream
from tests.model_check.sender import Feed, Sent


@dataclass(frozen=True, slots=True)
class Facts:
    """A table that carries a mark; `table` is None where the upstream has none of that name."""

    name: Name
    table: TableState | None
    feed: Feed
    sent: Sent
    upstream: Upstream

    @property
    def is_older(self) -> bool:
        """Whether the table was there before the feed, or is not there any more."""
        return self.table is None or self.table.born <= self.sent.start_ts

    @property
    def is_untold(self) -> bool:
        """Whether the feed does not have its definition: it is older, or made like an older one."""
        return self.table is None or self.table.defined <= self.sent.start_ts

    @property
    def is_keyless(self) -> bool:
        """Whether the table has, or had, no key; or none that the feed tells.

        Of keys Canal-JSON tells only the primary one, beside its statements.
        """
        if self.table is None or not self.table.handle or self.happened("drop_key", "add_key"):
            return True
        has_primary = any(index.primary for index in self.table.indexes)
        return self.is_untold and self.feed.protocol == "canal-json" and not has_primary

    @property
    def is_unclear(self) -> bool:
        """Whether a RENAME without the old database may have meant the table."""
        is_meant = self.table is not None and AMBIGUOUS in self.table.excuses
        return is_meant or self.name in self.upstream.unclear

    def happened(self, *kinds: str) -> bool:
        """Whether one of these statements was about the table."""
        return self.table is None or not self.table.past.isdisjoint(kinds)


Justified = Callable[[Facts], bool]

KINDS: tuple[tuple[str, Justified], ...] = (
    (r"The feed does not have its CREATE TABLE", lambda facts: facts.is_untold),
    (r"Its columns are not known", lambda facts: facts.is_untold),
    (
        r"(DROP|TRUNCATE) PARTITION removes rows, and how the table is partitioned is not known",
        lambda facts: facts.is_untold and facts.happened("drop_partition", "truncate_partition"),
    ),
    (
        r"The schema of its rows \(version \d+\) is not in the feed",
        lambda facts: facts.feed.protocol == "simple" and facts.is_older,
    ),
    (
        r"Its rows lack the column",
        lambda facts: (
            facts.is_untold
            and bool(facts.feed.options.get("delete_only_output_handle_key_columns"))
        ),
    ),
    (r"RECOVER TABLE brings back rows", lambda facts: facts.happened("recover")),
    (r"FLASHBACK TABLE brings back rows", lambda facts: facts.happened("flashback_table")),
    (r"EXCHANGE PARTITION swaps rows", lambda facts: facts.happened("exchange")),
    (r"FLASHBACK CLUSTER brings back rows", lambda facts: facts.happened("flashback")),
    (
        r"A table `\w+` was renamed to .* does not tell in which database it was",
        lambda facts: facts.is_unclear,
    ),
    (
        r"It has no key, and the feed has no watermarks",
        lambda facts: facts.is_keyless and not facts.feed.has_watermarks,
    ),
    (
        r"It has no key, and identical rows of one transaction",
        lambda facts: (
            facts.is_keyless
            and (
                facts.sent.has_resent
                or (facts.table is not None and "twins" in facts.table.excuses)
            )
        ),
    ),
    (
        r"A change could not be written to it: it has no key, and an update came without",
        lambda facts: facts.is_keyless and not facts.feed.has_old_rows,
    ),
    (
        r"Rows from (before|after) .* arrived (after|before) it, and the feed has no watermarks",
        lambda facts: facts.sent.has_resent and not facts.feed.has_watermarks,
    ),
    (
        r"Its rows arrived before (its CREATE TABLE|the RENAME)",
        lambda facts: not facts.feed.has_watermarks,
    ),
    (
        r"A message with (its rows|a statement) could be read only when",
        # A partition that was added promised nothing before: what it brings again looks new.
        lambda facts: facts.feed.late_topics or facts.sent.has_added_partitions,
    ),
)


def wrong_reasons(facts: Facts, reasons: tuple[str, ...]) -> Iterator[str]:
    """The reasons of a table that nothing in its history justifies."""
    for reason in reasons:
        justified = next((test for pattern, test in KINDS if re.match(pattern, reason)), None)
        if justified is None or not justified(facts):
            yield reason
