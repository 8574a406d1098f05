"""`bank`: money goes from account to account, and at every instant there is as much as ever.

The first row is the vault, which has all the money there is. Accounts are opened with money out of
it and closed with their money back into it; a transfer takes from one account, gives to another and
is written down, all in one transaction. What is written down is kept for a while, then deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from random import Random

from tidegate.workload.clock import DEFAULT_RATE, datetime_ms_text, datetime_text
from tidegate.workload.truth import Row
from tidegate.workload.upstream import Scripted, Table, Upstream

DATABASE = "bank"
TOTAL_CENTS = 1_000_000_000_00
"""All the money there is: the sum of `balance` from the first row on."""
KEPT_TRANSFERS = 50_000

_ACCOUNTS = (
    "CREATE TABLE `accounts` (`id` BIGINT PRIMARY KEY,`owner` VARCHAR(60) NOT NULL,"
    "`branch` INT NOT NULL,`balance` DECIMAL(20,2) NOT NULL,`opened_at` DATETIME NOT NULL,"
    "INDEX `by_branch`(`branch`))"
)
_TRANSFERS = (
    "CREATE TABLE `transfers` (`id` BIGINT UNSIGNED PRIMARY KEY,`debtor` BIGINT NOT NULL,"
    "`creditor` BIGINT NOT NULL,`amount` DECIMAL(20,2) NOT NULL,`at` DATETIME(3) NOT NULL,"
    "`memo` VARCHAR(100))"
)
_MEMOS = (None, "rent", "Gehalt März", "groceries", "“thanks”", "股息", "café & pâtisserie", None)
_VAULT = "1"
_MOST_ROWS = 4  # of one transaction


def money(cents: int) -> str:
    """DECIMAL(20,2)'s text."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02}"


class Bank(Scripted):
    """Accounts and transfers; `accounts` is about how many there are at a time."""

    name = "bank"

    def __init__(
        self, rows: int, seed: int, *, rate: int = DEFAULT_RATE, accounts: int = 1000
    ) -> None:
        super().__init__(rows, seed, rate)
        self.accounts = max(2, min(accounts, rows // 8))

    def steps(self, upstream: Upstream) -> Iterator[None]:
        upstream.create_database(DATABASE)
        yield
        accounts = upstream.create_table(DATABASE, _ACCOUNTS)
        yield
        transfers = upstream.create_table(DATABASE, _TRANSFERS)
        yield
        teller = _Teller(upstream, accounts, transfers, Random(self.seed))
        if upstream.room:
            teller.open_vault()
            yield
        while upstream.room >= _MOST_ROWS:
            teller.serve(self.accounts)
            yield
        while upstream.room:
            teller.move_branch()
            yield


class _Teller:
    """Does one transaction after the other."""

    def __init__(
        self, upstream: Upstream, accounts: Table, transfers: Table, chance: Random
    ) -> None:
        self._upstream = upstream
        self._accounts = accounts
        self._transfers = transfers
        self._random = chance.random
        self._open: list[str] = []
        self._cents: dict[str, int] = {}
        self._kept: deque[Row] = deque()
        self._last_account = 1
        self._last_transfer = 0

    def open_vault(self) -> None:
        self._upstream.begin()
        self._cents[_VAULT] = TOTAL_CENTS
        self._upstream.insert(self._accounts, self._account(_VAULT, "the vault", TOTAL_CENTS))

    def serve(self, wanted: int) -> None:
        """Opens, closes, or transfers between two accounts."""
        count = len(self._open)
        chance = self._random()
        if count < 2 or (count < wanted and chance < 0.5) or chance < 0.01:
            self._open_account()
        elif chance < 0.02:
            self._close_account()
        else:
            self._transfer()

    def move_branch(self) -> None:
        """A change that moves no money."""
        self._upstream.begin()
        account = self._accounts.rows[self._someone() if self._open else _VAULT]
        self._upstream.update(
            self._accounts, account, (*account[:2], str(int(self._random() * 40)), *account[3:])
        )

    def _open_account(self) -> None:
        self._upstream.begin()
        self._last_account += 1
        key = str(self._last_account)
        cents = int(self._random() * 1_000_000)
        self._open.append(key)
        self._cents[key] = cents
        owner = f"owner {int(self._random() * 1e9):09}"
        self._upstream.insert(self._accounts, self._account(key, owner, cents))
        self._pay(_VAULT, -cents)

    def _close_account(self) -> None:
        self._upstream.begin()
        place = int(self._random() * len(self._open))
        key, self._open[place] = self._open[place], self._open[-1]
        self._open.pop()
        self._upstream.delete(self._accounts, self._accounts.rows[key])
        self._pay(_VAULT, self._cents.pop(key))

    def _transfer(self) -> None:
        self._upstream.begin()
        debtor = creditor = self._someone()
        while creditor == debtor:
            creditor = self._someone()
        # An empty account goes into debt now and then.
        most = max(self._cents[debtor], 5000)
        cents = 1 + int(self._random() * most)
        self._pay(debtor, -cents)
        self._pay(creditor, cents)
        self._last_transfer += 1
        memo = _MEMOS[int(self._random() * len(_MEMOS))]
        at = datetime_ms_text(self._upstream.now_ms)
        entry = (str(self._last_transfer), debtor, creditor, money(cents), at, memo)
        self._upstream.insert(self._transfers, entry)
        self._kept.append(entry)
        if len(self._kept) > KEPT_TRANSFERS:
            self._upstream.delete(self._transfers, self._kept.popleft())

    def _someone(self) -> str:
        return self._open[int(self._random() * len(self._open))]

    def _pay(self, key: str, cents: int) -> None:
        self._cents[key] = balance = self._cents[key] + cents
        before = self._accounts.rows[key]
        after = (before[0], before[1], before[2], money(balance), before[4])
        self._upstream.update(self._accounts, before, after)

    def _account(self, key: str, owner: str, cents: int) -> Row:
        branch = str(int(self._random() * 40))
        opened = datetime_text(self._upstream.now_ms // 1000 * 1000)
        return (key, owner, branch, money(cents), opened)
