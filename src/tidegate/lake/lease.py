"""One mirror at a time: a lease on the lake, kept in the properties of a log of the lake's own.

The owner renews it; whoever else wants the lake is refused while it is renewed, and takes it over
when it is not. Each owner has an epoch, which every log of the lake knows: commits of earlier
epochs fail. Times of different machines are never compared. docs/architecture.md has the argument.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StructField, StructType

from tidegate.lake.formats import delta, iceberg
from tidegate.lake.formats.base import OWN_DATABASE, LakePlace, TableFormat, local_folder
from tidegate.lake.formats.commits import EPOCH, Guard, LeaseLost
from tidegate.lake.formats.log_table import LogTable
from tidegate.lake.storage.file_store import is_remote
from tidegate.model import LakeError

NAME = "lease"
SECONDS = 30.0
"""How long a lease lasts unless a setting says otherwise."""

_LEASE = "tidegate.lease"
_COLUMNS = StructType([StructField("epoch", LongType())])
_RENEWALS = 3
"""How often a lease is renewed in the time that it lasts."""
_MARGIN = 1 / 6
"""What part of it must be left for a commit to begin."""
_LOOKS = 10
"""How often somebody else's lease is looked at in the time that it lasts."""
_ABANDONED: set[str] = set()
"""Ids of leases that this process no longer uses and could not give back, as with a full disk."""
_TIDY = 60
"""After so many renewals the versions of the log are forgotten, of which each is one."""


class LakeTaken(LakeError):
    """Another process has the lease of the lake."""

    def __init__(self, place: str, holding: LeaseEntry) -> None:
        owner = holding.owner
        assert owner is not None
        self.owner = owner
        super().__init__(
            f"Another mirror is at work on the lake {place!r}: process {owner.pid} on "
            f"{owner.host}, whose lease runs until {holding.until} unless it renews it",
            "Stop it first, or give this one a lake of its own",
        )


class LeaseClock:
    """Seconds since this machine has started, those in which it slept included."""

    def now(self) -> float:
        """The time; all processes of a machine have the same."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def wait(self, seconds: float) -> None:
        """Lets time pass."""
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """A process that holds leases; `machine` is empty where it cannot be told from others.

    `started` tells processes apart that had the same number one after the other.
    """

    id: str
    host: str
    pid: int
    started: str
    machine: str

    @classmethod
    def new(cls) -> LeaseOwner:
        """This process, with an id of its own."""
        pid = os.getpid()
        return cls(uuid.uuid4().hex, socket.gethostname(), pid, _started(pid) or "", _machine())

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine, so that clocks can be compared."""
        return bool(self.machine) and self.machine == _machine()

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to have ended."""
        return self.is_here and _started(self.pid) != self.started


@cache
def _machine() -> str:
    """What processes share that see the same clock and the same process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return " ".join([boot, *(os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "time"))])
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When a process of this machine was started, in the kernel's words; None if it has ended."""
    try:
        # The name of the program, in parentheses, may have spaces.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = fields.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]


@dataclass(frozen=True, slots=True)
class LeaseEntry:
    """What the lake says of its lease; without an `owner` it is free.

    `renewed` is the owner's clock at the last renewal, `until` the end of the lease for people.
    """

    epoch: int = 0
    owner: LeaseOwner | None = None
    seconds: float = 0.0
    renewed: float = 0.0
    until: str = ""

    def to_text(self) -> str:
        """What `from_text` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | None) -> LeaseEntry:
        """The entry of a lake; nobody has had a lease where there is none."""
        if text is None:
            return cls()
        fields = json.loads(text)
        if fields["owner"] is not None:
            fields["owner"] = LeaseOwner(**fields["owner"])
        return cls(**fields)

    def is_over(self, clock: LeaseClock) -> bool | None:
        """Whether the lake can be had; None where that takes time to see, of another machine."""
        if self.owner is None or self.owner.is_dead or self.owner.id in _ABANDONED:
            return True
        if self.owner.is_here:
            # A clock that is before the renewal is that of another boot with the same id.
            return not self.renewed <= clock.now() < self.renewed + self.seconds
        return None


class LeaseRecord(ABC):
    """Where a lease is written down, and what it protects."""

    place: str
    """What the lake is called in errors."""

    @abstractmethod
    def read(self) -> str | None:
        """What was written last."""

    @abstractmethod
    def write(self, text: str, expected: str | None) -> None:
        """Writes where the last is as expected, in one step; raises LeaseLost where it is not."""

    @abstractmethod
    def fence(self, epoch: int) -> None:
        """Makes all logs refuse commits of earlier epochs; LeaseLost if one has a later one."""

    @abstractmethod
    def tidy(self) -> None:
        """Removes what earlier writes have left."""


class LakeLeaseRecord(LeaseRecord):
    """The record in a lake; `logs` are those that are fenced."""

    def __init__(self, place: str, tables: TableFormat, logs: Sequence[LogTable]) -> None:
        self.place = place
        self._tables = tables
        self._logs = logs
        self._log = tables.create_log(NAME, _COLUMNS, history=False)
        self._log.guard = Guard

    def read(self) -> str | None:
        text: str | None = self._log.load().properties.get(_LEASE)
        return text

    def write(self, text: str, expected: str | None) -> None:
        self._log.append([], {_LEASE: text}, {_LEASE: expected})

    def fence(self, epoch: int) -> None:
        for log in self._logs:
            log.fence(epoch)

    def tidy(self) -> None:
        self._tables.forget_versions(self._log.identifier, keep_seconds=0)


class Lease(Guard):
    """The lease that this process has on a lake: what allows its commits.

    `acquire` gets it or raises LakeTaken; `renew` is for a thread (see `held`); `release` ends it.
    """

    def __init__(
        self,
        record: LeaseRecord,
        seconds: float = SECONDS,
        *,
        owner: LeaseOwner | None = None,
        clock: LeaseClock | None = None,
    ) -> None:
        self.seconds = seconds
        self.epoch = 0
        self._record = record
        self._owner = owner or LeaseOwner.new()
        self._clock = clock or LeaseClock()
        self._writing = threading.Lock()
        self._text: str | None = None
        self._valid_until = float("-inf")
        self._ended = ""
        self.trouble: Exception | None = None
        """Why the last attempt to renew it or to give it back failed."""

    # --- getting it -------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Gets the lease; of an owner that may be dead, when that is certain."""
        while True:
            text = self._wait_until_over()
            self.epoch = LeaseEntry.from_text(text).epoch + 1
            try:
                self._write(text)
            except LeaseLost:
                continue  # somebody else has got it meanwhile, or renewed it
            except Exception:
                _ABANDONED.add(self._owner.id)  # it may have been written all the same
                raise
            break
        try:
            self._record.fence(self.epoch)
        except BaseException:
            self.give_back()
            raise

    def _wait_until_over(self) -> str | None:
        """The entry of a lease that is over; LakeTaken as soon as it is seen that it is not."""
        first = self._record.read()
        entry = LeaseEntry.from_text(first)
        # The owner counts from before it wrote this, so its lease is over when this one's is.
        deadline = self._clock.now() + entry.seconds
        is_over = entry.is_over(self._clock)
        while is_over is None and self._clock.now() < deadline:
            self._clock.wait(entry.seconds / _LOOKS)
            text = self._record.read()
            if text != first:
                first, entry = text, LeaseEntry.from_text(text)
                is_over = entry.owner is None
        if is_over is False:
            raise LakeTaken(self._record.place, entry)
        return first

    # --- keeping it -------------------------------------------------------------------------------

    def renew(self) -> None:
        """Makes it last from now on; LeaseLost where it is somebody else's."""
        with self._writing:
            self._renew()

    def _renew(self) -> None:
        self._raise_if_ended()
        try:
            self._write(self._text)
        except LeaseLost:
            entry = LeaseEntry.from_text(self._record.read())
            self._ended = self._taken_by(entry)
            raise LeaseLost(self._ended) from None

    def _write(self, expected: str | None) -> None:
        """Writes down that the lease is ours; it counts from before that."""
        now = self._clock.now()
        until = datetime.now(UTC) + timedelta(seconds=self.seconds)
        entry = LeaseEntry(
            self.epoch, self._owner, self.seconds, now, f"{until:%Y-%m-%d %H:%M:%S} UTC"
        )
        text = entry.to_text()
        self._record.write(text, expected)
        self._text, self._valid_until = text, now + self.seconds

    def _taken_by(self, entry: LeaseEntry) -> str:
        if entry.owner is None:
            return f"its epoch is {entry.epoch}, that of this one was {self.epoch}"
        return f"process {entry.owner.pid} on {entry.owner.host} has its lease"

    def release(self) -> None:
        """Gives it back, so that the next owner need not wait."""
        with self._writing:
            if self._ended:
                return
            self._ended = "this one has given back its lease"
            self._record.write(LeaseEntry(self.epoch).to_text(), self._text)

    def give_back(self) -> None:
        """Releases it if that is possible; else other processes wait until it has run out."""
        try:
            self.release()
        except Exception as error:
            self.trouble = error
            _ABANDONED.add(self._owner.id)

    def tidy(self) -> None:
        """Removes what renewals have left."""
        self._record.tidy()

    # --- what it allows ---------------------------------------------------------------------------

    def check(self) -> None:
        """Raises LeaseLost unless enough of the lease is left for a commit.

        One that could not be renewed in time, as after a pause, is renewed now if it can be.
        """
        if self._is_valid():
            return
        with self._writing:
            if not self._is_valid():
                self._renew()

    def _is_valid(self) -> bool:
        self._raise_if_ended()
        return self._clock.now() + self.seconds * _MARGIN < self._valid_until

    def _raise_if_ended(self) -> None:
        if self._ended:
            raise LeaseLost(self._ended)

    def check_log(self, identifier: str, properties: Any) -> None:
        """Raises LeaseLost where a log is another epoch's."""
        epoch = properties.get(EPOCH)
        if epoch != str(self.epoch):
            raise LeaseLost(f"{identifier} is written by epoch {epoch}, this one's is {self.epoch}")


@contextmanager
def held(lease: Lease, tables: TableFormat) -> Iterator[Lease]:
    """Holds a lease, renewed by a thread, and lets it guard the tables meanwhile."""
    lease.acquire()
    ended = threading.Event()

    def renew() -> None:
        count = 0
        while not ended.wait(lease.seconds / _RENEWALS):
            try:
                lease.renew()
                count += 1
                if count % _TIDY == 0:
                    lease.tidy()
            except LeaseLost:
                return  # the next commit raises it
            except Exception as error:
                # A catalog that does not answer may do so next time. Once the lease has run out, a
                # commit renews it first, and raises what is in its way then.
                lease.trouble = error

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    before, tables.guard = tables.guard, lease
    thread.start()
    try:
        yield lease
    finally:
        ended.set()
        thread.join(lease.seconds)
        tables.guard = before
        lease.give_back()


def check_free(place: LakePlace, format_name: str) -> None:
    """Raises LakeTaken where another process of this machine has the lease of a local lake.

    No JVM is needed for that. Of another machine's lease it cannot be said so quickly.
    """
    entry = local_lease(place, format_name)
    if entry.is_over(LeaseClock()) is False:
        raise LakeTaken(str(local_folder(place.folder)), entry)


def local_lease(place: LakePlace, format_name: str) -> LeaseEntry:
    """What a lake in a local folder says of its lease; nothing where it takes a JVM to know."""
    if is_remote(place.folder) or (place.catalog is not None and format_name != "delta"):
        return LeaseEntry()
    log_properties = {"iceberg": iceberg.log_properties, "delta": delta.log_properties}
    folder, database = local_folder(place.folder), place.prefix + OWN_DATABASE
    properties = log_properties[format_name](folder, database, NAME)
    return LeaseEntry.from_text(properties.get(_LEASE))
