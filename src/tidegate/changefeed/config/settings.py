"""Every setting of a changefeed that TiCDC documents, and what becomes of it here.

A setting has a path in the changefeed's TOML file (`sink.kafka-config.partition-num`) and often a
parameter of the sink URI. It is used; or it is ignored, with a reason, as it changes no message; or
it is TiCDC's alone: a feed made with it is read, but none is written; or it is refused. The
authorities are TiCDC's pages on sinking to Kafka and on changefeed configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from tidegate.model import ConfigError

INT32_MAX = 2**31 - 1


class Secret:
    """A text that must not be seen: only `reveal` shows it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret('******')"

    def __str__(self) -> str:
        return "******"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))


class Notice(NamedTuple):
    """A setting that does nothing here, and why."""

    setting: str
    reason: str


# --- the forms of values --------------------------------------------------------------------------

# A form reads the text of a URI's parameter (of_text) and the value of a TOML key (of_toml). Both
# raise ValueError, whose text goes into a ConfigError.

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_TRUE = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_FALSE = frozenset({"0", "f", "F", "false", "False", "FALSE"})
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_MILLISECONDS = {
    "ns": 1e-6,
    "us": 1e-3,
    "µs": 1e-3,
    "μs": 1e-3,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
}


class Flag:
    """True or false."""

    def of_text(self, text: str) -> bool:
        if text not in _TRUE | _FALSE:
            raise ValueError(f"{text!r} is neither true nor false")
        return text in _TRUE

    def of_toml(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"it must be true or false, not {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds."""

    least: int = 1
    most: int = 2**63 - 1

    def of_text(self, text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise ValueError(f"{text!r} is no whole number")
        return self._bounded(int(text))

    def of_toml(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"it must be a whole number, not {value!r}")
        return self._bounded(value)

    def _bounded(self, value: int) -> int:
        if not self.least <= value <= self.most:
            raise ValueError(f"it must be from {self.least} to {self.most}, not {value}")
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """Any text, or one of `choices` in any case, or one of a pattern."""

    choices: tuple[str, ...] = ()
    pattern: str = ""
    meaning: str = ""

    def of_text(self, text: str) -> str:
        if self.choices:
            folded = text.strip().lower()
            if folded not in self.choices:
                raise ValueError(f"it must be one of {', '.join(self.choices)}, not {text!r}")
            return folded
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise ValueError(f"{text!r} is not {self.meaning}")
        return text

    def of_toml(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"it must be a text, not {value!r}")
        return self.of_text(value) if value else value


class SecretText:
    """A text that is kept from sight, also in errors."""

    def of_text(self, text: str) -> Secret:
        return Secret(text)

    def of_toml(self, value: object) -> Secret:
        if not isinstance(value, str):
            raise ValueError("it must be a text")
        return Secret(value)


class Duration:
    """A span of time in Go's notation, "1m30s"; read as whole milliseconds."""

    def of_text(self, text: str) -> int:
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(f"{text!r} is no duration: write it like 10s, 1m30s or 500ms")
        return round(sum(float(number) * _MILLISECONDS[unit] for number, unit in parts))

    def of_toml(self, value: object) -> int:
        if not isinstance(value, str):
            raise ValueError(f'it must be a duration like "10s", not {value!r}')
        return self.of_text(value)


class Texts:
    """A list of texts; in a URI separated by commas."""

    def of_text(self, text: str) -> tuple[str, ...]:
        return tuple(part for part in text.split(",") if part)

    def of_toml(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise ValueError(f"it must be a list of texts, not {value!r}")
        return tuple(value)


class Anything:
    """Whatever stands there: read by other code, or by none."""

    def of_text(self, text: str) -> object:
        return text

    def of_toml(self, value: object) -> object:
        return value


Form: TypeAlias = Flag | Whole | Text | SecretText | Duration | Texts | Anything


# --- the settings ---------------------------------------------------------------------------------


class Fate(Enum):
    """What becomes of a setting."""

    USED = "used"
    IGNORED = "ignored"
    TICDC_ONLY = "feeds made with it are read, none is written"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of TiCDC; `why` is told of one that is not used."""

    path: str
    form: Form
    fate: Fate = Fate.USED
    why: str = ""
    parameter: str | None = None
    connection: bool = False
    """It says how to reach Kafka, which a capture has no use for."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]


_FLAG, _TEXT, _SECRET, _SPAN, _ANY = Flag(), Text(), SecretText(), Duration(), Anything()
_COUNT = Whole(1, INT32_MAX)

_STORAGE = "it belongs to TiCDC's storage sink, whose files Tidegate neither reads nor writes"
_DATABASE = "it belongs to sinks that are databases"
_SERVER = "it concerns the work of TiCDC's servers, not their messages"
_AVRO = "it belongs to the avro protocol, which Tidegate does not have"
_DEBEZIUM = "it belongs to the debezium protocol, which Tidegate does not have"
_ROUTING = "Tidegate writes tables under their own names"


def _used(table: str, *named: tuple[str, Form], connection: bool = False) -> list[Setting]:
    """Settings that file and URI both have."""
    return [
        Setting(f"{table}.{name}", form, parameter=name, connection=connection)
        for name, form in named
    ]


def _file_only(table: str, *named: tuple[str, Form], connection: bool = False) -> list[Setting]:
    prefix = f"{table}." if table else ""
    return [Setting(prefix + name, form, connection=connection) for name, form in named]


def _unused(fate: Fate, why: str, table: str, *names: str, uri: bool = False) -> list[Setting]:
    prefix = f"{table}." if table else ""
    return [Setting(prefix + name, _ANY, fate, why, name if uri else None) for name in names]


_KAFKA = "sink.kafka-config"
_CODEC = "sink.kafka-config.codec-config"
_LARGE = "sink.kafka-config.large-message-handle"

SETTINGS: tuple[Setting, ...] = (
    *_file_only("", ("case-sensitive", _FLAG), ("force-replicate", _FLAG)),
    *_file_only("filter", ("rules", Texts())),
    *_used(
        "sink",
        ("protocol", _TEXT),
        ("only-output-updated-columns", _FLAG),
        ("content-compatible", _FLAG),
        ("transaction-atomicity", Text(("none", "table"))),
    ),
    *_file_only(
        "sink",
        ("dispatchers", _ANY),
        ("delete-only-output-handle-key-columns", _FLAG),
        ("send-bootstrap-interval-in-sec", Whole(-(2**63))),
        ("send-bootstrap-in-msg-count", Whole(-(2**31), INT32_MAX)),
        ("send-bootstrap-to-all-partition", _FLAG),
        ("send-all-bootstrap-at-start", _FLAG),
        ("open.output-old-value", _FLAG),
    ),
    *_used(
        _CODEC,
        ("enable-tidb-extension", _FLAG),
        ("max-batch-size", _COUNT),
        ("encoding-format", Text(("json", "avro"))),
    ),
    *_file_only(
        _LARGE,
        ("large-message-handle-option", Text(("none", "handle-key-only", "claim-check"))),
        ("large-message-handle-compression", Text(("none", "snappy", "lz4"))),
        ("claim-check-storage-uri", _SECRET),
        ("claim-check-raw-value", _FLAG),
    ),
    *_used(
        _KAFKA,
        ("partition-num", _COUNT),
        ("max-message-bytes", _COUNT),
    ),
    *_used(
        _KAFKA,
        ("replication-factor", Whole(1, 2**15 - 1)),
        ("auto-create-topic", _FLAG),
        ("kafka-client-id", Text((), "[A-Za-z0-9._-]+", "made of letters, digits, dot, _ and -")),
        ("compression", Text(("none", "gzip", "snappy", "lz4", "zstd"))),
        ("required-acks", Whole(-1, 1)),
        ("dial-timeout", _SPAN),
        ("read-timeout", _SPAN),
        ("enable-tls", _FLAG),
        ("ca", _TEXT),
        ("cert", _TEXT),
        ("key", _TEXT),
        ("insecure-skip-verify", _FLAG),
        (
            "sasl-mechanism",
            Text(("plain", "scram-sha-256", "scram-sha-512", "gssapi", "oauthbearer")),
        ),
        ("sasl-user", _TEXT),
        ("sasl-password", _SECRET),
        ("sasl-gssapi-auth-type", Text(("user", "keytab"))),
        ("sasl-gssapi-keytab-path", _TEXT),
        ("sasl-gssapi-kerberos-config-path", _TEXT),
        ("sasl-gssapi-service-name", _TEXT),
        ("sasl-gssapi-user", _TEXT),
        ("sasl-gssapi-password", _SECRET),
        ("sasl-gssapi-realm", _TEXT),
        ("sasl-gssapi-disable-pafxfast", _FLAG),
        connection=True,
    ),
    *_file_only(
        _KAFKA,
        ("sasl-oauth-client-id", _TEXT),
        ("sasl-oauth-client-secret", _SECRET),
        ("sasl-oauth-token-url", _SECRET),
        ("sasl-oauth-scopes", Texts()),
        ("sasl-oauth-grant-type", _TEXT),
        ("sasl-oauth-audience", _TEXT),
        connection=True,
    ),
    *_unused(
        Fate.IGNORED,
        "the Kafka client asks the brokers for their version",
        _KAFKA,
        "kafka-version",
        uri=True,
    ),
    *_unused(
        Fate.IGNORED,
        "Kafka's Java client has one time limit for a whole request: read-timeout",
        _KAFKA,
        "write-timeout",
        uri=True,
    ),
    *_unused(
        Fate.IGNORED,
        "Tidegate writes the changes it is given and splits none",
        _KAFKA,
        "output-raw-change-event",
    ),
    *_unused(
        Fate.IGNORED,
        "it concerns how TiCDC runs its encoders",
        "sink",
        "encoder-concurrency",
        "enable-kafka-sink-v2",
        "advance-timeout-in-sec",
    ),
    *_unused(
        Fate.IGNORED,
        _STORAGE,
        "sink",
        "terminator",
        "date-separator",
        "enable-partition-separator",
        "file-index-digit",
        "cloud-storage-config",
    ),
    *_unused(Fate.IGNORED, _DATABASE, "sink", "safe-mode", "mysql-config"),
    *_unused(Fate.IGNORED, "it belongs to Pulsar sinks", "sink", "pulsar-config"),
    *_unused(Fate.IGNORED, "it belongs to the csv protocol", "sink", "csv"),
    *_unused(Fate.IGNORED, "it belongs to the debezium protocol", "sink", "debezium"),
    *_unused(
        Fate.IGNORED,
        _SERVER,
        "",
        "memory-quota",
        "check-gc-safe-point",
        "ignore-ineligible-table",
        "changefeed-error-stuck-duration",
        "enable-table-monitor",
        "sql-mode",
        "mounter",
        "scheduler",
        "synced-status",
    ),
    *_unused(
        Fate.IGNORED,
        _DATABASE,
        "",
        "enable-sync-point",
        "sync-point-interval",
        "sync-point-retention",
        "bdr-mode",
        "consistent",
    ),
    *_unused(
        Fate.IGNORED,
        "TiCDC no longer heeds it; for the open protocol use sink.open.output-old-value",
        "",
        "enable-old-value",
    ),
    *_unused(
        Fate.IGNORED, "checksums are kept where a feed brings them, and not made", "", "integrity"
    ),
    *_unused(
        Fate.TICDC_ONLY,
        "Tidegate drops no single event of a table",
        "filter",
        "event-filters",
        "ignore-txn-start-ts",
    ),
    *_unused(Fate.TICDC_ONLY, "Tidegate writes all columns of a row", "sink", "column-selectors"),
    *_unused(
        Fate.TICDC_ONLY,
        "changes hold no record key that could be written",
        _CODEC,
        "output-row-key",
        uri=True,
    ),
    Setting(
        "sink.simple.include-start-ts",
        _ANY,
        Fate.TICDC_ONLY,
        "changes hold no start_ts that could be written",
        "simple-include-start-ts",
    ),
    *_unused(Fate.REFUSED, _AVRO, "sink", "schema-registry", uri=True),
    *_unused(
        Fate.REFUSED,
        _AVRO,
        _CODEC,
        "avro-enable-watermark",
        "avro-decimal-handling-mode",
        "avro-bigint-unsigned-handling-mode",
        "avro-include-before-value",
        uri=True,
    ),
    *_unused(Fate.REFUSED, _AVRO, _KAFKA, "glue-schema-registry-config"),
    *_unused(Fate.REFUSED, _DEBEZIUM, "sink", "debezium-disable-schema", uri=True),
)

# Parameters that the file spells otherwise, inside sections that are not looked into.
_URI_ONLY = (
    *_unused(
        Fate.REFUSED,
        _DEBEZIUM,
        "",
        "debezium-include-start-ts",
        "debezium-decimal-handling-mode",
        "debezium-bigint-unsigned-handling-mode",
        "debezium-binary-handling-mode",
        uri=True,
    ),
    *_unused(
        Fate.REFUSED,
        _STORAGE,
        "",
        "worker-count",
        "flush-interval",
        "file-size",
        "file-expiration-days",
        "file-cleanup-cron-spec",
        "flush-concurrency",
        "output-column-id",
        uri=True,
    ),
)

BY_PATH: dict[str, Setting] = {setting.path: setting for setting in SETTINGS}
BY_PARAMETER: dict[str, Setting] = {
    setting.parameter: setting
    for setting in (*SETTINGS, *_URI_ONLY)
    if setting.parameter is not None
}

DISPATCH_RULE: dict[str, Setting] = {
    setting.path: setting
    for setting in (
        *_file_only(
            "",
            ("matcher", Texts()),
            ("partition", _TEXT),
            ("dispatcher", _TEXT),
            ("topic", _TEXT),
            ("columns", Texts()),
            ("index", _TEXT),
        ),
        *_unused(Fate.TICDC_ONLY, _ROUTING, "", "target-schema", "target-table", "schema", "table"),
    )
}
"""The keys of an element of `sink.dispatchers`."""


def _tables() -> dict[str, frozenset[str]]:
    """The keys of every table of the file; "" is the file itself."""
    keys: dict[str, set[str]] = {"": set()}
    for path in BY_PATH:
        while path:
            table, _, name = path.rpartition(".")
            keys.setdefault(table, set()).add(name)
            path = table
    return {table: frozenset(names) for table, names in keys.items()}


TABLES: dict[str, frozenset[str]] = _tables()


# --- reading --------------------------------------------------------------------------------------


def nearest(name: str, known: Iterable[str]) -> str:
    """What to use in place of a name that is not known, as the end of a sentence."""
    names = sorted(known)
    close = get_close_matches(name.lower().replace("_", "-"), names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}"
    return f"known here are {', '.join(names)}"


def asks_for_nothing(value: object) -> bool:
    """Whether a value is what a setting that is switched off has: false, zero or empty."""
    return value in (False, 0, "", "false", "0") or value == [] or value == {}


def read_parameter(name: str, text: str, source: str) -> Any:
    """The value of a known parameter of a URI."""
    try:
        return BY_PARAMETER[name].form.of_text(text)
    except ValueError as error:
        raise ConfigError(name, str(error), source=source) from None


def read_key(setting: Setting, path: str, value: object, source: str) -> Any:
    """The value of a known key of the file; `path` is where it stands."""
    try:
        return setting.form.of_toml(value)
    except ValueError as error:
        raise ConfigError(path, str(error), source=source) from None
