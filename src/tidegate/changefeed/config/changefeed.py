"""A changefeed as its user describes it to TiCDC: a sink URI and a TOML file, read as TiCDC does.

What the URI says wins over the file. Every setting that TiCDC documents is known (`settings`); an
error names the setting by its path and says what would be right. Secrets are never part of an
error, nor of any text made from these objects.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import quote, unquote_plus, unquote_to_bytes

from tidegate.changefeed.config.filter import SYSTEM_DATABASES, TableFilter
from tidegate.changefeed.config.kafka_clients import KafkaConnection
from tidegate.changefeed.config.settings import (
    BY_PARAMETER,
    BY_PATH,
    DISPATCH_RULE,
    TABLES,
    Fate,
    Notice,
    Secret,
    SecretText,
    Setting,
    asks_for_nothing,
    nearest,
    read_key,
    read_parameter,
)
from tidegate.changefeed.config.topic import TopicExpression, check_topic
from tidegate.model import ConfigError
from tidegate.wire import PROTOCOLS, EncodeOptions

URI = "the sink URI"
FILE = "the changefeed file"

PartitionRule = Literal["default", "table", "index-value", "columns", "ts"]
_PARTITION_RULES: dict[str, PartitionRule] = {
    "default": "default",
    "table": "table",
    "index-value": "index-value",
    "rowid": "index-value",  # TiCDC's deprecated name
    "columns": "columns",
    "ts": "ts",
}

_PROTOCOL_ALIASES = {"default": "open-protocol"}
_FOREIGN_PROTOCOLS = {
    "avro": "it needs a schema registry; use simple with encoding-format=avro",
    "flat-avro": "it needs a schema registry; use simple with encoding-format=avro",
    "debezium": "use canal-json or simple",
    "debezium-avro": "it needs a schema registry; use simple with encoding-format=avro",
    "canal": "TiCDC gave up this binary form; use canal-json",
    "maxwell": "TiCDC gave it up; use canal-json",
    "csv": "it is for TiCDC's storage sink; use canal-json",
}
_FOREIGN_SCHEMES = {
    **dict.fromkeys(
        ("mysql", "mysql+ssl", "tidb", "tidb+ssl"), "Tidegate does not write to databases"
    ),
    **dict.fromkeys(
        ("pulsar", "pulsar+ssl", "pulsar+http", "pulsar+https"), "Tidegate does not speak Pulsar"
    ),
    **dict.fromkeys(
        ("s3", "gcs", "gs", "azblob", "azure", "cifs", "nfs", "noop"),
        "Tidegate does not read or write the files of TiCDC's storage sink",
    ),
    "blackhole": "it keeps nothing",
}

# The options of EncodeOptions that each protocol heeds in TiCDC; others do nothing there.
_LARGE = frozenset({"compression", "large_message_handle", "claim_check_raw_value"})
_HEEDED: dict[str, frozenset[str]] = {
    "open-protocol": _LARGE
    | {
        "output_old_value",
        "only_output_updated_columns",
        "delete_only_output_handle_key_columns",
    },
    "canal-json": _LARGE
    | {
        "enable_tidb_extension",
        "content_compatible",
        "only_output_updated_columns",
        "delete_only_output_handle_key_columns",
    },
    "simple": _LARGE | {"encoding_format"},
    "craft": frozenset({"delete_only_output_handle_key_columns"}),
    "cdc": frozenset(),
}
_HANDLE_PATH = "sink.kafka-config.large-message-handle."
_CODEC_PATH = "sink.kafka-config.codec-config."
_OPTION_PATHS = {
    "output_old_value": "sink.open.output-old-value",
    "only_output_updated_columns": "sink.only-output-updated-columns",
    "delete_only_output_handle_key_columns": "sink.delete-only-output-handle-key-columns",
    "content_compatible": "sink.content-compatible",
    "enable_tidb_extension": _CODEC_PATH + "enable-tidb-extension",
    "encoding_format": _CODEC_PATH + "encoding-format",
    "compression": _HANDLE_PATH + "large-message-handle-compression",
    "large_message_handle": _HANDLE_PATH + "large-message-handle-option",
    "claim_check_raw_value": _HANDLE_PATH + "claim-check-raw-value",
}


def protocol_name(text: str, *, setting: str = "protocol", source: str | None = None) -> str:
    """The protocol that a name of TiCDC's stands for; ConfigError if Tidegate does not have it."""
    name = text.lower()
    name = _PROTOCOL_ALIASES.get(name, name)
    if name in PROTOCOLS:
        return name
    if name in _FOREIGN_PROTOCOLS:
        reason = f"Tidegate does not have the protocol {name}: {_FOREIGN_PROTOCOLS[name]}"
    else:
        reason = f"there is no protocol {text!r}; {nearest(text, PROTOCOLS)}"
    raise ConfigError(setting, reason, source=source)


# --- the sink URI ---------------------------------------------------------------------------------

_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)"
    r"(?:\?(?P<query>[^#]*))?(?P<fragment>#.*)?",
    re.DOTALL,
)
_BROKER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class SinkUri:
    """A sink URI, read: Kafka's brokers and topic, or the folder of a capture, and parameters.

    `parameters` holds what the URI gives and nothing else, by TiCDC's names. Texts made from it
    show no password.
    """

    scheme: Literal["kafka", "kafka+ssl", "file"]
    brokers: tuple[str, ...] = ()
    topic: str | None = None
    path: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> SinkUri:
        """Reads `kafka://host:port[,host:port]/topic?…` or `file:///folder?…`."""
        match = _URI.fullmatch(text.strip())
        if match is None:
            raise _uri_error(
                "write kafka://host:port/topic?protocol=… or file:///folder?protocol=…"
            )
        scheme = match["scheme"].lower()
        if scheme not in ("kafka", "kafka+ssl", "file"):
            raise _uri_error(_about_scheme(scheme))
        if match["fragment"]:
            raise _uri_error("it has a #; if it belongs to a value, write it as %23")
        if "@" in match["authority"]:
            raise _uri_error("user and password stand before the host; use sasl-user and -password")
        if scheme == "file":
            parameters = _parameters(match["query"] or "", of_capture=True)
            path = _folder(match["authority"], match["path"])
            return cls("file", path=path, parameters=parameters)
        return cls(
            cast(Literal["kafka", "kafka+ssl"], scheme),
            brokers=tuple(_broker(part) for part in match["authority"].split(",")),
            topic=_topic(match["path"]),
            parameters=_parameters(match["query"] or "", of_capture=False),
        )

    @property
    def protocol(self) -> str | None:
        """The protocol that the URI names, if it does."""
        return self.parameters.get("protocol")

    def kafka_options(self, read: Callable[[str], str] | None = None) -> dict[str, str]:
        """The connection as options of Spark's Kafka source and sink; passwords are in it.

        `read` gives the content of a PEM file; without it, the options name the files, and
        certificate and key must be one.
        """
        return self._connection(self._by_path()).options(read)

    def _connection(self, values: Mapping[str, Any]) -> KafkaConnection:
        if self.scheme == "file":
            raise _uri_error("it names a capture, not Kafka")
        return KafkaConnection.of(self.brokers, self.scheme == "kafka+ssl", values)

    def _by_path(self) -> dict[str, Any]:
        return {BY_PARAMETER[name].path: value for name, value in self.parameters.items()}

    def __str__(self) -> str:
        place = quote(self.path or "", safe="/") if self.path is not None else f"/{self.topic}"
        query = "&".join(f"{name}={_shown(value)}" for name, value in self.parameters.items())
        return f"{self.scheme}://{','.join(self.brokers)}{place}" + ("?" + query if query else "")


def _uri_error(reason: str) -> ConfigError:
    return ConfigError("sink-uri", reason)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, Secret) else quote(str(value), safe="/:,")


def _about_scheme(scheme: str) -> str:
    why = _FOREIGN_SCHEMES.get(scheme)
    if why is None:
        return f"there is no scheme {scheme!r}: use kafka:// or file://"
    return f"the scheme {scheme} cannot be used: {why}; use kafka:// or file://"


def _decoded(text: str, what: str) -> str:
    """Percent-encoding undone; errors do not show the text, which may be secret."""
    if not _BAD_PERCENT.search(text):
        try:
            return unquote_to_bytes(text).decode()
        except UnicodeDecodeError:
            pass
    raise _uri_error(f"{what} is not percent-encoded UTF-8; write a % as %25")


def _broker(text: str) -> str:
    match = _BROKER.fullmatch(text)
    if match is None:
        what = f"{text!r} is no broker" if text else "a broker is missing"
        raise _uri_error(f"{what}: write host:port, several with commas between")
    if not 1 <= int(match["port"]) <= 65535:
        raise _uri_error(f"the port of {text!r} must be from 1 to 65535")
    return text


def _topic(path: str) -> str:
    topic = _decoded(path, "the topic").strip("/")
    if not topic:
        raise _uri_error("the topic is missing: write kafka://host:port/topic")
    try:
        return check_topic(topic)
    except ValueError as error:
        raise _uri_error(str(error)) from None


def _folder(authority: str, path: str) -> str:
    if authority not in ("", "localhost"):
        raise _uri_error(f"files are local: write file:///folder, not file://{authority}/…")
    folder = _decoded(path, "the folder")
    if not folder.strip("/"):
        raise _uri_error("the folder is missing: write file:///folder")
    return folder


def _parameters(query: str, *, of_capture: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    after_secret: str | None = None
    for pair in filter(None, query.split("&")):
        encoded, _, raw = pair.partition("=")
        name = unquote_plus(encoded, errors="replace")
        setting = BY_PARAMETER.get(name)
        if setting is None:
            raise _unknown_parameter(name, after_secret)
        if name in found:
            raise ConfigError(name, "it is given twice", source=URI)
        if of_capture and setting.connection:
            reason = "it says how to reach Kafka, and a capture is a file"
            raise ConfigError(name, reason, source=URI)
        after_secret = name if isinstance(setting.form, SecretText) else None
        text = _decoded(raw.replace("+", " "), f"the value of {name!r}")
        if not text:
            continue
        if setting.fate is Fate.REFUSED and not asks_for_nothing(text):
            raise ConfigError(name, setting.why, source=URI)
        value = read_parameter(name, text, URI)
        found[name] = protocol_name(value, source=URI) if name == "protocol" else value
    return found


def _unknown_parameter(name: str, after_secret: str | None) -> ConfigError:
    hint = nearest(name, BY_PARAMETER)
    if after_secret is not None and not hint.startswith("did you mean"):
        # Perhaps not a name at all, but the rest of a password: it must not be shown.
        return ConfigError(
            after_secret,
            "what follows it is no parameter; if its value has a & in it, write it as %26",
            source=URI,
        )
    return ConfigError(name, f"there is no such parameter; {hint}", source=URI)


# --- the changefeed -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DispatchRule:
    """Where the changes of some tables go: an element of `sink.dispatchers`."""

    matcher: tuple[str, ...]
    partition: PartitionRule = "default"
    topic: TopicExpression | None = None
    columns: tuple[str, ...] = ()
    index: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedConfig:
    """A changefeed's settings, by TiCDC's names; defaults are TiCDC's.

    `ignored` tells which of the settings given do nothing here. `unwritable` are those that change
    what TiCDC sends in a way that Tidegate can read but not write.
    """

    sink_uri: SinkUri | None = None
    protocol: str | None = None
    case_sensitive: bool = False
    force_replicate: bool = False
    filter_rules: tuple[str, ...] = ("*.*",)
    dispatchers: tuple[DispatchRule, ...] = ()
    partition_num: int | None = None
    replication_factor: int = 1
    auto_create_topic: bool = True
    max_message_bytes: int = EncodeOptions().max_message_bytes
    max_batch_size: int = EncodeOptions().max_batch_size
    enable_tidb_extension: bool = False
    content_compatible: bool = False
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False
    output_old_value: bool = True
    encoding_format: Literal["json", "avro"] = "json"
    compression: Literal["snappy", "lz4"] | None = None
    large_message_handle: Literal["handle-key-only", "claim-check"] | None = None
    claim_check_storage_uri: Secret | None = None
    claim_check_raw_value: bool = False
    send_bootstrap_interval_in_sec: int = 120
    send_bootstrap_in_msg_count: int = 10_000
    send_bootstrap_to_all_partition: bool = True
    send_all_bootstrap_at_start: bool = False
    kafka: KafkaConnection | None = None
    ignored: tuple[Notice, ...] = ()
    unwritable: tuple[Notice, ...] = ()
    table_filter: TableFilter = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rules = TableFilter.parse(
            self.filter_rules, case_sensitive=self.case_sensitive, source=FILE
        )
        object.__setattr__(self, "table_filter", rules)

    @classmethod
    def from_toml(cls, text: str, sink_uri: SinkUri | str | None = None) -> ChangefeedConfig:
        """Reads a changefeed file, and over it the sink URI.

        With a URI, one of the two must name the protocol.
        """
        uri = SinkUri.parse(sink_uri) if isinstance(sink_uri, str) else sink_uri
        given = _Given()
        given.add_file(_toml(text))
        if uri is not None:
            given.add_uri(uri)
        return given.config(uri)

    @classmethod
    def from_uri(cls, sink_uri: SinkUri | str) -> ChangefeedConfig:
        """A changefeed without a file."""
        return cls.from_toml("", sink_uri)

    @property
    def topic(self) -> str | None:
        """The default topic: that of the sink URI."""
        return None if self.sink_uri is None else self.sink_uri.topic

    @property
    def sends_bootstrap(self) -> bool:
        """Whether table schemas are sent ahead of rows, and again from time to time."""
        often = self.send_bootstrap_interval_in_sec > 0 and self.send_bootstrap_in_msg_count > 0
        return self.protocol == "simple" and often

    @property
    def sends_watermarks(self) -> bool:
        """Whether the feed tells how far it is complete."""
        if self.protocol == "canal-json":
            return self.enable_tidb_extension
        return self.protocol != "cdc"

    def replicates(self, database: str, table: str) -> bool:
        """Whether the feed has this table; those of TiDB's own databases it never has."""
        is_system = database.lower() in SYSTEM_DATABASES
        return not is_system and self.table_filter.matches(database, table)

    def replicates_database(self, database: str) -> bool:
        """Whether the feed may have a table of this database."""
        is_system = database.lower() in SYSTEM_DATABASES
        return not is_system and self.table_filter.matches_database(database)

    def encode_options(
        self,
        *,
        generation: Literal["classic", "new"] = "classic",
        claim_check: Callable[[bytes], str] | None = None,
        time_zone: str = "UTC",
    ) -> EncodeOptions:
        """The options to write this feed with, for `encode_batch` of its protocol.

        `claim_check` stores the objects of a feed with claim checks. Settings that the protocol
        does not heed are left at their defaults, as TiCDC leaves them.
        """
        if self.protocol is None:
            raise ConfigError("sink.protocol", f"no protocol is given; {nearest('', PROTOCOLS)}")
        for setting, reason in self.unwritable:
            raise ConfigError(setting, f"a feed with it can only be read: {reason}")
        heeded = {name: getattr(self, name) for name in _HEEDED[self.protocol]}
        return EncodeOptions(
            max_message_bytes=self.max_message_bytes,
            max_batch_size=self.max_batch_size,
            generation=generation,
            claim_check=claim_check if self.large_message_handle == "claim-check" else None,
            time_zone=time_zone,
            **heeded,
        )

    def kafka_options(self, read: Callable[[str], str] | None = None) -> dict[str, str]:
        """The connection as options of Spark's Kafka source and sink; passwords are in it.

        `read` gives the content of a PEM file; without it, the options name the files, and
        certificate and key must be one. With insecure-skip-verify the name of the broker is not
        checked, but its certificate still is: Kafka's Java client cannot do without.
        """
        return self._kafka().options(read)

    def producer_options(self) -> dict[str, str]:
        """What Spark's Kafka sink needs beside the connection: acks, compression, sizes."""
        return self._kafka().producer_options()

    def java_options(self) -> tuple[str, ...]:
        """Options for the command line of the JVM, where only it can be told."""
        return self._kafka().java_options()

    def _kafka(self) -> KafkaConnection:
        if self.kafka is None:
            raise _uri_error("the changefeed names no Kafka: write kafka://host:port/topic")
        return self.kafka


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
    # Raised here, so that the error does not drag along the whole file, which may hold passwords.
    raise ConfigError("changefeed", f"the file is not TOML: {reason}")


class _Given:
    """Collects what file and URI give, by path, and where each stands."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._uri_names: dict[str, str] = {}
        self._ignored: dict[str, str] = {}
        self._unwritable: dict[str, str] = {}

    def add_file(self, table: Mapping[str, Any], prefix: str = "") -> None:
        for name, value in table.items():
            path = f"{prefix}.{name}" if prefix else name
            setting = BY_PATH.get(path)
            if setting is not None:
                self._add(setting, path, read_key(setting, path, value, FILE), FILE)
            elif path not in TABLES:
                raise _unknown_key(path, name, TABLES[prefix])
            elif isinstance(value, dict):
                self.add_file(value, path)
            else:
                raise ConfigError(path, f"it must be a table: write [{path}]", source=FILE)

    def add_uri(self, uri: SinkUri) -> None:
        for name, value in uri.parameters.items():
            setting = BY_PARAMETER[name]
            self._uri_names[setting.path] = name
            self._add(setting, setting.path, value, URI)

    def _add(self, setting: Setting, path: str, value: Any, source: str) -> None:
        if setting.fate is Fate.USED:
            if value not in ("", Secret("")):
                self._values[path] = value
        elif setting.fate is Fate.IGNORED or asks_for_nothing(value):
            self._ignored[self._name(path)] = setting.why or "it asks for nothing"
        elif setting.fate is Fate.REFUSED:
            raise ConfigError(self._name(path), setting.why, source=source)
        else:
            self._unwritable[self._name(path)] = setting.why

    def _name(self, path: str) -> str:
        """The setting as its user wrote it."""
        return self._uri_names.get(path, path)

    def _error(self, path: str, reason: str) -> ConfigError:
        source = URI if path in self._uri_names else FILE
        return ConfigError(self._name(path), reason, source=source)

    def config(self, uri: SinkUri | None) -> ChangefeedConfig:
        values = self._values
        protocol = self._protocol(uri)
        if values.get("sink.transaction-atomicity") == "table":
            reason = "messages have no transactions: it must be none"
            raise self._error("sink.transaction-atomicity", reason)
        options = self._options()
        self._check_large_messages(protocol, options)
        self._note_unheeded(protocol, options)
        if options.get("content_compatible") and protocol == "canal-json":
            options["only_output_updated_columns"] = True
        connection = None
        if uri is not None and uri.scheme != "file":
            connection = uri._connection(values)
        dispatchers = tuple(self._dispatch_rules())
        return ChangefeedConfig(
            sink_uri=uri,
            protocol=protocol,
            filter_rules=values.get("filter.rules", ("*.*",)),
            dispatchers=dispatchers,
            kafka=connection,
            ignored=tuple(Notice(*item) for item in self._ignored.items()),
            unwritable=tuple(Notice(*item) for item in self._unwritable.items()),
            **options,
            **self._plain(),
        )

    def _protocol(self, uri: SinkUri | None) -> str | None:
        text = self._values.get("sink.protocol")
        if text is not None:
            return protocol_name(text, setting=self._name("sink.protocol"), source=FILE)
        if uri is None:
            return None
        names = ", ".join(PROTOCOLS)
        raise ConfigError(
            "protocol", f"neither sink URI nor file names it; use one of {names}", source=URI
        )

    def _plain(self) -> dict[str, Any]:
        """Settings that become fields as they are."""
        paths = (
            "case-sensitive",
            "force-replicate",
            "sink.send-bootstrap-interval-in-sec",
            "sink.send-bootstrap-in-msg-count",
            "sink.send-bootstrap-to-all-partition",
            "sink.send-all-bootstrap-at-start",
            "sink.kafka-config.partition-num",
            "sink.kafka-config.replication-factor",
            "sink.kafka-config.auto-create-topic",
            "sink.kafka-config.max-message-bytes",
            _CODEC_PATH + "max-batch-size",
            _HANDLE_PATH + "claim-check-storage-uri",
        )
        return {
            BY_PATH[path].name.replace("-", "_"): self._values[path]
            for path in paths
            if path in self._values
        }

    def _options(self) -> dict[str, Any]:
        """Settings that are options of an encoder."""
        options = {
            option: self._values[path]
            for option, path in _OPTION_PATHS.items()
            if path in self._values
        }
        return {name: None if value == "none" else value for name, value in options.items()}

    def _check_large_messages(self, protocol: str | None, options: Mapping[str, Any]) -> None:
        """TiCDC's rules for what goes together."""
        handle = options.get("large_message_handle")
        path = _OPTION_PATHS["large_message_handle"]
        deletes = "delete_only_output_handle_key_columns"
        if self._values.get("force-replicate"):
            for asked, where in (
                (options.get(deletes), _OPTION_PATHS[deletes]),
                (handle == "handle-key-only", path),
            ):
                if asked:
                    reason = "force-replicate sends tables without a key, so it cannot be used"
                    raise self._error(where, reason)
        if handle is None or protocol is None:
            return
        if "large_message_handle" not in _HEEDED[protocol]:
            raise self._error(path, f"the protocol {protocol} cannot do it: it must be none")
        if protocol == "canal-json" and not options.get("enable_tidb_extension"):
            raise self._error(path, "with canal-json it needs enable-tidb-extension=true")
        if handle == "claim-check":
            storage = _HANDLE_PATH + "claim-check-storage-uri"
            if storage not in self._values:
                raise self._error(storage, "claim-check needs it, and it is not given")
            if protocol == "open-protocol" and options.get("claim_check_raw_value"):
                raise self._error(
                    _OPTION_PATHS["claim_check_raw_value"],
                    "the open protocol needs the key beside the value: it must be false",
                )

    def _note_unheeded(self, protocol: str | None, options: Mapping[str, Any]) -> None:
        if protocol is None:
            return
        defaults = EncodeOptions()
        for option, value in options.items():
            if option not in _HEEDED[protocol] and value != getattr(defaults, option):
                name = self._name(_OPTION_PATHS[option])
                self._ignored[name] = f"the protocol {protocol} does not heed it"

    def _dispatch_rules(self) -> Iterator[DispatchRule]:
        rules = self._values.get("sink.dispatchers", ())
        if not isinstance(rules, list | tuple):
            raise ConfigError("sink.dispatchers", "it must be a list of tables", source=FILE)
        for number, rule in enumerate(rules):
            path = f"sink.dispatchers[{number}]"
            if not isinstance(rule, dict):
                reason = "it must be a table: {matcher = ['db.*'], partition = 'ts'}"
                raise ConfigError(path, reason, source=FILE)
            yield self._dispatch_rule(path, rule)

    def _dispatch_rule(self, path: str, table: Mapping[str, Any]) -> DispatchRule:
        values: dict[str, Any] = {}
        for name, value in table.items():
            where = f"{path}.{name}"
            setting = DISPATCH_RULE.get(name)
            if setting is None:
                raise _unknown_key(where, name, DISPATCH_RULE)
            if setting.fate is Fate.USED:
                values[name] = read_key(setting, where, value, FILE)
            elif not asks_for_nothing(value):
                self._unwritable[where] = setting.why

        matcher = values.get("matcher", ())
        if not matcher:
            reason = "it must list tables: matcher = ['db.*']"
            raise ConfigError(f"{path}.matcher", reason, source=FILE)
        TableFilter.parse(matcher, setting=f"{path}.matcher", source=FILE)
        partition = _partition_rule(path, values)
        columns, index = values.get("columns", ()), values.get("index") or None
        if partition == "columns" and not columns:
            reason = "partition = 'columns' needs it: columns = ['a', 'b']"
            raise ConfigError(f"{path}.columns", reason, source=FILE)
        if columns and partition != "columns":
            reason = "it goes with partition = 'columns' only"
            raise ConfigError(f"{path}.columns", reason, source=FILE)
        if index is not None and partition != "index-value":
            reason = "it goes with partition = 'index-value' only"
            raise ConfigError(f"{path}.index", reason, source=FILE)
        return DispatchRule(matcher, partition, _topic_rule(path, values), columns, index)


def _partition_rule(path: str, values: Mapping[str, Any]) -> PartitionRule:
    if values.get("partition") and values.get("dispatcher"):
        reason = "it is the old name of 'partition', which is given too: leave it out"
        raise ConfigError(f"{path}.dispatcher", reason, source=FILE)
    name = "dispatcher" if values.get("dispatcher") else "partition"
    text = values.get(name) or "default"
    rule = _PARTITION_RULES.get(text.lower())
    if rule is None:
        reason = f"there is no rule {text!r}; {nearest(text, _PARTITION_RULES)}"
        raise ConfigError(f"{path}.{name}", reason, source=FILE)
    return rule


def _topic_rule(path: str, values: Mapping[str, Any]) -> TopicExpression | None:
    text = values.get("topic")
    if not text:
        return None
    try:
        return TopicExpression.parse(text)
    except ValueError as error:
        raise ConfigError(f"{path}.topic", str(error), source=FILE) from None


def _unknown_key(path: str, name: str, known: Mapping[str, Any] | frozenset[str]) -> ConfigError:
    elsewhere = [setting.path for setting in BY_PATH.values() if setting.name == name]
    if elsewhere:
        table = elsewhere[0].rpartition(".")[0]
        where = f"under [{table}]" if table else "at the top of the file"
        return ConfigError(path, f"it does not belong here, but {where}", source=FILE)
    return ConfigError(path, f"there is no such key; {nearest(name, known)}", source=FILE)
