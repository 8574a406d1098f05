"""Sink URIs and changefeed files: what TiCDC takes is taken, and nothing is dropped unsaid."""

import copy
import pickle
import traceback
from typing import Any

import pytest

from tidegate.changefeed.config.changefeed import ChangefeedConfig, DispatchRule, SinkUri
from tidegate.changefeed.config.settings import BY_PARAMETER, SETTINGS, Fate, Notice, Secret
from tidegate.changefeed.config.topic import TopicExpression
from tidegate.model import ConfigError
from tidegate.wire import EncodeOptions

KAFKA = "kafka://h:9092/t"


def refused(read: Any, *arguments: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(*arguments)
    return caught.value


# --- the sink URI ---------------------------------------------------------------------------------


def test_a_kafka_uri() -> None:
    uri = SinkUri.parse(
        "kafka://127.0.0.1:9092,b-2.example.com:9093,[::1]:9094/topic-name?protocol=canal-json"
        "&kafka-version=2.4.0&partition-num=6&max-message-bytes=67108864&replication-factor=1"
        "&enable-tidb-extension=true&dial-timeout=1m30s"
    )

    assert uri.scheme == "kafka"
    assert uri.brokers == ("127.0.0.1:9092", "b-2.example.com:9093", "[::1]:9094")
    assert uri.topic == "topic-name"
    assert uri.path is None
    assert uri.protocol == "canal-json"
    assert uri.parameters == {
        "protocol": "canal-json",
        "kafka-version": "2.4.0",
        "partition-num": 6,
        "max-message-bytes": 67108864,
        "replication-factor": 1,
        "enable-tidb-extension": True,
        "dial-timeout": 90_000,
    }


def test_a_capture_uri() -> None:
    uri = SinkUri.parse("file:///var/lib/my%20feed?protocol=simple&encoding-format=avro")

    assert (uri.scheme, uri.path, uri.topic) == ("file", "/var/lib/my feed", None)
    assert uri.parameters == {"protocol": "simple", "encoding-format": "avro"}
    assert str(uri) == "file:///var/lib/my%20feed?protocol=simple&encoding-format=avro"
    assert SinkUri.parse("file://localhost/a").path == "/a"


@pytest.mark.parametrize(
    "query, name, value",
    [
        ("protocol=OPEN-PROTOCOL", "protocol", "open-protocol"),
        ("protocol=default", "protocol", "open-protocol"),
        ("protocol=cdc", "protocol", "cdc"),
        ("enable-tls=1", "enable-tls", True),
        ("enable-tls=F", "enable-tls", False),
        ("required-acks=-1", "required-acks", -1),
        ("read-timeout=1h0.5m20ms", "read-timeout", 3_630_020),
        ("sasl-mechanism=SCRAM-SHA-512", "sasl-mechanism", "scram-sha-512"),
        ("sasl-user=a%40b+c", "sasl-user", "a@b c"),
        ("sasl-password=p%26q%3Dr%2Bs", "sasl-password", Secret("p&q=r+s")),
        ("&&compression=Snappy&", "compression", "snappy"),
    ],
)
def test_parameters_are_read(query: str, name: str, value: object) -> None:
    assert SinkUri.parse(f"{KAFKA}?{query}").parameters == {name: value}


def test_an_empty_parameter_is_none() -> None:
    assert SinkUri.parse(f"{KAFKA}?protocol=&ca=&partition-num").parameters == {}


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "write kafka://host:port/topic?protocol=… or file:///folder?protocol=…"),
        (
            "localhost:9092/t",
            "write kafka://host:port/topic?protocol=… or file:///folder?protocol=…",
        ),
        ("http://h:1/t", "there is no scheme 'http': use kafka:// or file://"),
        (
            "kafka://root:p@h:9092/t",
            "user and password stand before the host; use sasl-user and -password",
        ),
        (
            "mysql://root:p@h:4000/",
            "the scheme mysql cannot be used: Tidegate does not write to databases; "
            "use kafka:// or file://",
        ),
        (
            "pulsar://h:6650/t",
            "the scheme pulsar cannot be used: Tidegate does not speak Pulsar; "
            "use kafka:// or file://",
        ),
        (
            "s3://bucket/prefix",
            "the scheme s3 cannot be used: Tidegate does not read or write the files of TiCDC's "
            "storage sink; use kafka:// or file://",
        ),
        ("kafka://h/t", "'h' is no broker: write host:port, several with commas between"),
        ("kafka://h:1,/t", "a broker is missing: write host:port, several with commas between"),
        ("kafka://h:70000/t", "the port of 'h:70000' must be from 1 to 65535"),
        ("kafka://h:1", "the topic is missing: write kafka://host:port/topic"),
        ("kafka://h:1/?protocol=simple", "the topic is missing: write kafka://host:port/topic"),
        (
            "kafka://h:1/a/b",
            "'a/b' is no topic name: use 1 to 249 of the characters A-Z, a-z, 0-9, dot, underscore "
            "and hyphen",
        ),
        (
            "kafka://h:1/..",
            "'..' is no topic name: use 1 to 249 of the characters A-Z, a-z, 0-9, dot, underscore "
            "and hyphen",
        ),
        ("kafka://h:1/%zz", "the topic is not percent-encoded UTF-8; write a % as %25"),
        (
            f"{KAFKA}?sasl-user=%ff",
            "the value of 'sasl-user' is not percent-encoded UTF-8; write a % as %25",
        ),
        (f"{KAFKA}?sasl-user=a#b", "it has a #; if it belongs to a value, write it as %23"),
        ("file://server/x", "files are local: write file:///folder, not file://server/…"),
        ("file:///", "the folder is missing: write file:///folder"),
    ],
)
def test_a_uri_that_cannot_be_read(text: str, reason: str) -> None:
    error = refused(SinkUri.parse, text)

    assert (error.setting, error.reason) == ("sink-uri", reason)


@pytest.mark.parametrize(
    "query, setting, reason",
    [
        (
            "partiton-num=3",
            "partiton-num",
            "there is no such parameter; did you mean 'partition-num'",
        ),
        ("enable_tls=true", "enable_tls", "there is no such parameter; did you mean 'enable-tls'"),
        ("Protocol=simple", "Protocol", "there is no such parameter; did you mean 'protocol'"),
        ("protocol=simple&protocol=cdc", "protocol", "it is given twice"),
        ("partition-num=0", "partition-num", "it must be from 1 to 2147483647, not 0"),
        ("partition-num=1e3", "partition-num", "'1e3' is no whole number"),
        ("enable-tls=yes", "enable-tls", "'yes' is neither true nor false"),
        ("required-acks=2", "required-acks", "it must be from -1 to 1, not 2"),
        (
            "read-timeout=10",
            "read-timeout",
            "'10' is no duration: write it like 10s, 1m30s or 500ms",
        ),
        (
            "compression=zip",
            "compression",
            "it must be one of none, gzip, snappy, lz4, zstd, not 'zip'",
        ),
        (
            "sasl-mechanism=digest-md5",
            "sasl-mechanism",
            "it must be one of plain, scram-sha-256, scram-sha-512, gssapi, oauthbearer, "
            "not 'digest-md5'",
        ),
        (
            "kafka-client-id=a%20b",
            "kafka-client-id",
            "'a b' is not made of letters, digits, dot, _ and -",
        ),
        (
            "schema-registry=http://u:p@h",
            "schema-registry",
            "it belongs to the avro protocol, which Tidegate does not have",
        ),
        (
            "avro-decimal-handling-mode=string",
            "avro-decimal-handling-mode",
            "it belongs to the avro protocol, which Tidegate does not have",
        ),
        (
            "debezium-disable-schema=true",
            "debezium-disable-schema",
            "it belongs to the debezium protocol, which Tidegate does not have",
        ),
        (
            "flush-interval=5s",
            "flush-interval",
            "it belongs to TiCDC's storage sink, whose files Tidegate neither reads nor writes",
        ),
        (
            "protocol=avro",
            "protocol",
            "Tidegate does not have the protocol avro: it needs a schema registry; "
            "use simple with encoding-format=avro",
        ),
        (
            "protocol=debezium",
            "protocol",
            "Tidegate does not have the protocol debezium: use canal-json or simple",
        ),
        (
            "protocol=Maxwell",
            "protocol",
            "Tidegate does not have the protocol maxwell: TiCDC gave it up; use canal-json",
        ),
        (
            "protocol=canal",
            "protocol",
            "Tidegate does not have the protocol canal: TiCDC gave up this binary form; "
            "use canal-json",
        ),
        (
            "protocol=csv",
            "protocol",
            "Tidegate does not have the protocol csv: it is for TiCDC's storage sink; "
            "use canal-json",
        ),
        (
            "protocol=canaljson",
            "protocol",
            "there is no protocol 'canaljson'; did you mean 'canal-json'",
        ),
    ],
)
def test_a_parameter_that_cannot_be_used(query: str, setting: str, reason: str) -> None:
    error = refused(SinkUri.parse, f"{KAFKA}?{query}")

    assert (error.setting, error.reason, error.source) == (setting, reason, "the sink URI")


def test_a_parameter_like_no_other_shows_all() -> None:
    error = refused(SinkUri.parse, f"{KAFKA}?zzzz=1")

    assert error.reason.startswith("there is no such parameter; known here are auto-create-topic, ")


def test_a_capture_has_no_connection() -> None:
    error = refused(SinkUri.parse, "file:///x?protocol=simple&sasl-user=a")

    assert error.setting == "sasl-user"
    assert error.reason == "it says how to reach Kafka, and a capture is a file"


# --- secrets --------------------------------------------------------------------------------------

HUSH = "hunter2"


def test_a_secret_does_not_show() -> None:
    secret = Secret(HUSH)
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>30}",
        f"{[secret]}",
    ]

    assert [text for text in shown if HUSH in text] == []
    assert secret.reveal() == HUSH
    assert secret == Secret(HUSH) != Secret("x")
    assert secret != HUSH
    assert (bool(secret), bool(Secret(""))) == (True, False)
    assert pickle.loads(pickle.dumps(secret)) == copy.deepcopy(secret) == secret


def test_passwords_do_not_show_in_what_is_made_from_them() -> None:
    uri = SinkUri.parse(
        f"{KAFKA}?protocol=simple&sasl-mechanism=plain&sasl-user=me&sasl-password={HUSH}"
        f"&sasl-gssapi-password={HUSH}"
    )
    config = ChangefeedConfig.from_toml(
        f"""
        [sink.kafka-config]
        sasl-oauth-client-secret = "{HUSH}"
        sasl-oauth-token-url = "https://me:{HUSH}@h/token"
        [sink.kafka-config.large-message-handle]
        large-message-handle-option = "claim-check"
        claim-check-storage-uri = "s3://b?secret-access-key={HUSH}"
        """,
        uri,
    )

    for thing in (uri, config, config.kafka, uri.parameters):
        assert HUSH not in repr(thing)
        assert HUSH not in str(thing)
    assert "sasl-password=******&" in str(uri)
    assert config.claim_check_storage_uri is not None
    assert config.claim_check_storage_uri.reveal() == f"s3://b?secret-access-key={HUSH}"
    assert HUSH in config.kafka_options()["kafka.sasl.jaas.config"]


@pytest.mark.parametrize(
    "file, uri",
    [
        ("", f"{KAFKA}?protocol=simple&sasl-password={HUSH}"),
        ("", f"{KAFKA}?sasl-password={HUSH}"),
        ("", f"{KAFKA}?sasl-password={HUSH}%"),
        ("", f"{KAFKA}?sasl-password=a&{HUSH}&protocol=simple"),
        ("", f"{KAFKA}?sasl-password=a&{HUSH}=x"),
        ("", f"{KAFKA}?sasl-password=a#{HUSH}"),
        ("", f"{KAFKA}?sasl-password=a&sasl-password={HUSH}"),
        ("", f"{KAFKA}?sasl-pasword={HUSH}"),
        ("", f"kafka://me:{HUSH}@h:9092/t"),
        ("", f"{KAFKA}?schema-registry=http://me:{HUSH}@h"),
        (f"[sink.kafka-config]\nsasl-password = ['{HUSH}']", None),
        (f"[sink.kafka-config]\nsasl-pasword = '{HUSH}'", None),
        (f"[sink.kafka-config]\nsasl-password = '{HUSH}", None),
        (f"[sink.kafka-config]\nsasl-password = '{HUSH}'\nx = ]", None),
        (f"[sink]\nschema-registry = 'http://me:{HUSH}@h'", None),
        (f"[sink.kafka-config.glue-schema-registry-config]\ntoken = '{HUSH}'", None),
        (
            "[sink.kafka-config]\nsasl-mechanism = 'oauthbearer'\nsasl-oauth-client-id = 'a'\n"
            f"sasl-oauth-client-secret = '{HUSH}!'\nsasl-oauth-token-url = 'https://{HUSH}@h'",
            f"{KAFKA}?protocol=simple",
        ),
    ],
)
def test_passwords_do_not_show_in_errors(file: str, uri: str | None) -> None:
    error = refused(ChangefeedConfig.from_toml, file, uri)
    seen: BaseException | None = error
    while seen is not None:
        told = "".join(traceback.format_exception_only(seen)) + repr(seen) + repr(vars(seen))
        assert HUSH not in told
        seen = seen.__cause__ or seen.__context__


def test_a_misspelt_name_after_a_password_is_still_named() -> None:
    error = refused(SinkUri.parse, f"{KAFKA}?sasl-password=x&sasl-mechanismm=plain")

    assert error.setting == "sasl-mechanismm"
    assert error.reason.endswith("did you mean 'sasl-mechanism'")
    error = refused(SinkUri.parse, f"{KAFKA}?sasl-password=x&yz")
    assert error.setting == "sasl-password"
    assert error.reason.endswith("if its value has a & in it, write it as %26")


# --- the changefeed file --------------------------------------------------------------------------

WHOLE_FILE = """
memory-quota = 1073741824
case-sensitive = true
force-replicate = false
enable-sync-point = false
sync-point-interval = "5m"
sql-mode = "ONLY_FULL_GROUP_BY"
bdr-mode = false
changefeed-error-stuck-duration = "30m"

[mounter]
worker-num = 16

[filter]
rules = ['*.*', '!test.*']

[scheduler]
enable-table-across-nodes = true

[integrity]
integrity-check-level = "correctness"

[consistent]
level = "none"
storage = ""

[sink]
protocol = "canal-json"
dispatchers = [
    {matcher = ['test1.*', 'test2.*'], topic = "one_{schema}", partition = "ts"},
    {matcher = ['test3.*'], dispatcher = "rowid", index = "u"},
    {matcher = ['test4.*'], partition = "Columns", columns = ["a", "b"]},
    {matcher = ['test6.*'], topic = ""},
]
only-output-updated-columns = true
delete-only-output-handle-key-columns = true
send-bootstrap-interval-in-sec = 60
send-bootstrap-in-msg-count = 500
send-bootstrap-to-all-partition = false
terminator = ''
date-separator = 'day'
encoder-concurrency = 32
debezium-disable-schema = false
column-selectors = []

[sink.csv]
delimiter = ','

[sink.open]
output-old-value = false

[sink.kafka-config]
partition-num = 4
max-message-bytes = 1000
sasl-mechanism = ""
sasl-user = ""
output-raw-change-event = false

[sink.kafka-config.codec-config]
enable-tidb-extension = true
max-batch-size = 8

[sink.kafka-config.large-message-handle]
large-message-handle-option = "handle-key-only"
large-message-handle-compression = "lz4"

[sink.cloud-storage-config]
worker-count = 16
"""


def test_a_whole_file() -> None:
    config = ChangefeedConfig.from_toml(WHOLE_FILE)

    assert config.protocol == "canal-json"
    assert config.case_sensitive is True
    assert config.filter_rules == ("*.*", "!test.*")
    assert config.dispatchers == (
        DispatchRule(("test1.*", "test2.*"), "ts", TopicExpression("one_{schema}")),
        DispatchRule(("test3.*",), "index-value", index="u"),
        DispatchRule(("test4.*",), "columns", columns=("a", "b")),
        DispatchRule(("test6.*",), "default"),
    )
    assert config.partition_num == 4
    assert config.send_bootstrap_interval_in_sec == 60
    assert config.send_bootstrap_in_msg_count == 500
    assert config.send_bootstrap_to_all_partition is False
    assert config.unwritable == ()
    assert [notice.setting for notice in config.ignored] == [
        "memory-quota",
        "enable-sync-point",
        "sync-point-interval",
        "sql-mode",
        "bdr-mode",
        "changefeed-error-stuck-duration",
        "mounter",
        "scheduler",
        "integrity",
        "consistent",
        "sink.terminator",
        "sink.date-separator",
        "sink.encoder-concurrency",
        "sink.debezium-disable-schema",
        "sink.column-selectors",
        "sink.csv",
        "sink.kafka-config.output-raw-change-event",
        "sink.cloud-storage-config",
        "sink.open.output-old-value",
    ]
    assert config.ignored[-1].reason == "the protocol canal-json does not heed it"
    assert config.encode_options() == EncodeOptions(
        max_message_bytes=1000,
        max_batch_size=8,
        only_output_updated_columns=True,
        delete_only_output_handle_key_columns=True,
        enable_tidb_extension=True,
        compression="lz4",
        large_message_handle="handle-key-only",
    )


def test_nothing_given_is_ticdcs_default() -> None:
    config = ChangefeedConfig.from_toml("")

    assert config == ChangefeedConfig()
    assert config.filter_rules == ("*.*",)
    assert config.case_sensitive is False
    assert config.protocol is None
    assert (config.max_message_bytes, config.max_batch_size) == (10 * 1024 * 1024, 16)
    assert (config.send_bootstrap_interval_in_sec, config.send_bootstrap_in_msg_count) == (
        120,
        10000,
    )
    assert config.send_bootstrap_to_all_partition is True


def test_the_uri_wins_over_the_file() -> None:
    config = ChangefeedConfig.from_toml(
        """
        [sink]
        protocol = "avro"
        content-compatible = true
        [sink.kafka-config]
        partition-num = 4
        max-message-bytes = 1000
        required-acks = 0
        [sink.kafka-config.codec-config]
        enable-tidb-extension = true
        max-batch-size = 8
        """,
        f"{KAFKA}?protocol=canal-json&partition-num=6&enable-tidb-extension=false"
        "&content-compatible=false&max-batch-size=2&required-acks=1",
    )

    assert config.protocol == "canal-json"
    assert config.partition_num == 6
    assert config.topic == "t"
    assert config.encode_options() == EncodeOptions(max_message_bytes=1000, max_batch_size=2)
    assert config.producer_options() == {"kafka.acks": "1", "kafka.max.request.size": "1000"}


@pytest.mark.parametrize(
    "parameters, file, expected",
    [
        ("protocol=open-protocol", "", {}),
        (
            "protocol=open-protocol",
            "[sink.open]\noutput-old-value = false",
            {"output_old_value": False},
        ),
        ("protocol=simple", "[sink.open]\noutput-old-value = false", {}),
        ("protocol=simple&encoding-format=avro", "", {"encoding_format": "avro"}),
        ("protocol=open-protocol&encoding-format=avro", "", {}),
        ("protocol=simple&enable-tidb-extension=true", "", {}),
        ("protocol=canal-json&enable-tidb-extension=true", "", {"enable_tidb_extension": True}),
        (
            "protocol=canal-json&content-compatible=true",
            "",
            {"content_compatible": True, "only_output_updated_columns": True},
        ),
        ("protocol=open-protocol&content-compatible=true", "", {}),
        (
            "protocol=craft&only-output-updated-columns=true",
            "[sink]\ndelete-only-output-handle-key-columns = true",
            {"delete_only_output_handle_key_columns": True},
        ),
        ("protocol=simple", "[sink]\ndelete-only-output-handle-key-columns = true", {}),
        (
            "protocol=simple",
            "[sink.kafka-config.large-message-handle]\nlarge-message-handle-compression = 'snappy'",
            {"compression": "snappy"},
        ),
        (
            "protocol=craft",
            "[sink.kafka-config.large-message-handle]\nlarge-message-handle-compression = 'snappy'",
            {},
        ),
        (
            "protocol=simple",
            "[sink.kafka-config.large-message-handle]\nlarge-message-handle-option = 'claim-check'\n"
            "claim-check-storage-uri = 'file:///c'\nclaim-check-raw-value = true",
            {"large_message_handle": "claim-check", "claim_check_raw_value": True},
        ),
        ("protocol=cdc&max-batch-size=3", "", {"max_batch_size": 3}),
    ],
)
def test_an_encoder_is_told_what_its_protocol_heeds(
    parameters: str, file: str, expected: dict[str, Any]
) -> None:
    config = ChangefeedConfig.from_toml(file, f"{KAFKA}?{parameters}")

    assert config.encode_options() == EncodeOptions(**expected)


def test_what_the_protocol_does_not_heed_is_told() -> None:
    config = ChangefeedConfig.from_toml(
        "[sink.open]\noutput-old-value = false",
        f"{KAFKA}?protocol=simple&enable-tidb-extension=true",
    )

    reason = "the protocol simple does not heed it"
    assert config.ignored == (
        Notice("sink.open.output-old-value", reason),
        Notice("enable-tidb-extension", reason),
    )


def test_an_encoder_is_told_the_rest_by_its_caller() -> None:
    def store(content: bytes) -> str:
        return "place"

    plain = ChangefeedConfig.from_uri(f"{KAFKA}?protocol=simple")
    claims = ChangefeedConfig(protocol="simple", large_message_handle="claim-check")

    found = claims.encode_options(generation="new", claim_check=store, time_zone="Asia/Tokyo")
    assert (found.generation, found.claim_check, found.time_zone) == ("new", store, "Asia/Tokyo")
    assert plain.encode_options(claim_check=store).claim_check is None
    assert refused(ChangefeedConfig().encode_options).setting == "sink.protocol"


@pytest.mark.parametrize(
    "parameters, file, setting",
    [
        (
            "",
            "[[filter.event-filters]]\nmatcher = ['a.b']\nignore-event = ['insert']",
            "filter.event-filters",
        ),
        ("", "[filter]\nignore-txn-start-ts = [1, 2]", "filter.ignore-txn-start-ts"),
        (
            "",
            "[[sink.column-selectors]]\nmatcher = ['a.b']\ncolumns = ['c']",
            "sink.column-selectors",
        ),
        ("&output-row-key=true", "", "output-row-key"),
        (
            "",
            "[sink.kafka-config.codec-config]\noutput-row-key = true",
            "sink.kafka-config.codec-config.output-row-key",
        ),
        (
            "",
            "[[sink.dispatchers]]\nmatcher = ['a.*']\ntarget-schema = 'b'",
            "sink.dispatchers[0].target-schema",
        ),
    ],
)
def test_some_feeds_are_read_but_not_written(parameters: str, file: str, setting: str) -> None:
    config = ChangefeedConfig.from_toml(file, f"{KAFKA}?protocol=canal-json{parameters}")

    assert [notice.setting for notice in config.unwritable] == [setting]
    error = refused(config.encode_options)
    assert error.setting == setting
    assert error.reason.startswith("a feed with it can only be read: ")


@pytest.mark.parametrize(
    "file, setting, reason",
    [
        ("[snik]", "snik", "there is no such key; did you mean 'sink'"),
        (
            "[sink]\nprotocl = 'simple'",
            "sink.protocl",
            "there is no such key; did you mean 'protocol'",
        ),
        (
            "[sink.kafka-config.codec-config]\nencoding = 'json'",
            "sink.kafka-config.codec-config.encoding",
            "there is no such key; did you mean 'encoding-format'",
        ),
        (
            "[sink]\nenable-tidb-extension = true",
            "sink.enable-tidb-extension",
            "it does not belong here, but under [sink.kafka-config.codec-config]",
        ),
        (
            "[sink]\ncase-sensitive = true",
            "sink.case-sensitive",
            "it does not belong here, but at the top of the file",
        ),
        ("sink = 1", "sink", "it must be a table: write [sink]"),
        ("case-sensitive = 1", "case-sensitive", "it must be true or false, not 1"),
        ("[filter]\nrules = '*.*'", "filter.rules", "it must be a list of texts, not '*.*'"),
        (
            "[filter]\nrules = ['*.*', 'a']",
            "filter.rules[1]",
            "it has no table part: write database.table (the rule is 'a')",
        ),
        ("[sink]\nprotocol = 1", "sink.protocol", "it must be a text, not 1"),
        (
            "[sink]\nprotocol = 'canal'",
            "sink.protocol",
            "Tidegate does not have the protocol canal: TiCDC gave up this binary form; use canal-json",
        ),
        (
            "[sink.kafka-config]\npartition-num = true",
            "sink.kafka-config.partition-num",
            "it must be a whole number, not True",
        ),
        (
            "[sink.kafka-config]\ndial-timeout = 10",
            "sink.kafka-config.dial-timeout",
            'it must be a duration like "10s", not 10',
        ),
        (
            "[sink.kafka-config.codec-config]\nencoding-format = 'xml'",
            "sink.kafka-config.codec-config.encoding-format",
            "it must be one of json, avro, not 'xml'",
        ),
        (
            "[sink]\nschema-registry = 'http://h'",
            "sink.schema-registry",
            "it belongs to the avro protocol, which Tidegate does not have",
        ),
        (
            "[sink]\ntransaction-atomicity = 'table'",
            "sink.transaction-atomicity",
            "messages have no transactions: it must be none",
        ),
        ("[sink]\ndispatchers = 1", "sink.dispatchers", "it must be a list of tables"),
        (
            "[sink]\ndispatchers = ['a.b']",
            "sink.dispatchers[0]",
            "it must be a table: {matcher = ['db.*'], partition = 'ts'}",
        ),
        (
            "[sink]\ndispatchers = [{matcher = ['a.*']}, {partition = 'ts'}]",
            "sink.dispatchers[1].matcher",
            "it must list tables: matcher = ['db.*']",
        ),
        (
            "[sink]\ndispatchers = [{matcher = ['a.*', 'b']}]",
            "sink.dispatchers[0].matcher[1]",
            "it has no table part: write database.table (the rule is 'b')",
        ),
        (
            "[sink]\ndispatchers = [{matcher = ['a.*']}, {matcher = ['*.*'], partition = 'index'}]",
            "sink.dispatchers[1].partition",
            "there is no rule 'index'; did you mean 'index-value'",
        ),
        (
            "[sink]\ndispatchers = [{matcher = ['a.*'], partition = 'ts', dispatcher = 'ts'}]",
            "sink.dispatchers[0].dispatcher",
            "it is the old name of 'partition', which is given too: leave it out",
        ),
        (
            "[sink]\ndispatchers = [{matcher = ['a.*'], partition = 'columns'}]",
            "sink.dispatchers[0].columns",
            "partition = 'columns' needs it: columns = ['a', 'b']",
        ),
        (
            "[sink]\ndispatchers = [{matcher = ['a.*'], columns = ['a']}]",
            "sink.dispatchers[0].columns",
            "it goes with partition = 'columns' only",
        ),
        (
            "[sink]\ndispatchers = [{matcher = ['a.*'], partition = 'ts', index = 'i'}]",
            "sink.dispatchers[0].index",
            "it goes with partition = 'index-value' only",
        ),
        (
            "[sink]\ndispatchers = [{matcher = ['a.*'], topik = 'x'}]",
            "sink.dispatchers[0].topik",
            "there is no such key; did you mean 'topic'",
        ),
        (
            "[sink]\ndispatchers = [{matcher = ['a.*'], topic = '{table}_{schema}'}]",
            "sink.dispatchers[0].topic",
            "'{table}_{schema}' is no topic expression: write [prefix]{schema}[middle]{table}[suffix], "
            "where the parts between use A-Z, a-z, 0-9, dot, underscore and hyphen",
        ),
        (
            "[sink]\ndispatchers = [{matcher = ['a.*'], topic = '{column:a}'}]",
            "sink.dispatchers[0].topic",
            "a topic by the value of a column is not supported",
        ),
        (
            "force-replicate = true\n[sink]\ndelete-only-output-handle-key-columns = true",
            "sink.delete-only-output-handle-key-columns",
            "force-replicate sends tables without a key, so it cannot be used",
        ),
    ],
)
def test_a_key_that_cannot_be_used(file: str, setting: str, reason: str) -> None:
    error = refused(ChangefeedConfig.from_toml, file)

    assert (error.setting, error.reason, error.source) == (setting, reason, "the changefeed file")


@pytest.mark.parametrize(
    "protocol, lines, setting, reason",
    [
        (
            "craft",
            ["option = 'claim-check'"],
            "option",
            "the protocol craft cannot do it: it must be none",
        ),
        (
            "cdc",
            ["option = 'handle-key-only'"],
            "option",
            "the protocol cdc cannot do it: it must be none",
        ),
        (
            "canal-json",
            ["option = 'handle-key-only'"],
            "option",
            "with canal-json it needs enable-tidb-extension=true",
        ),
        (
            "simple",
            ["option = 'zip'"],
            "option",
            "it must be one of none, handle-key-only, claim-check, not 'zip'",
        ),
        (
            "simple",
            ["compression = 'gzip'"],
            "compression",
            "it must be one of none, snappy, lz4, not 'gzip'",
        ),
        (
            "simple",
            ["option = 'claim-check'"],
            "claim-check-storage-uri",
            "claim-check needs it, and it is not given",
        ),
        (
            "open-protocol",
            [
                "option = 'claim-check'",
                "claim-check-storage-uri = 'file:///c'",
                "claim-check-raw-value = true",
            ],
            "claim-check-raw-value",
            "the open protocol needs the key beside the value: it must be false",
        ),
    ],
)
def test_large_messages_follow_ticdcs_rules(
    protocol: str, lines: list[str], setting: str, reason: str
) -> None:
    table = "sink.kafka-config.large-message-handle"
    long = [line if line.startswith("claim") else f"large-message-handle-{line}" for line in lines]
    name = setting if setting.startswith("claim") else f"large-message-handle-{setting}"
    error = refused(
        ChangefeedConfig.from_toml, "\n".join([f"[{table}]", *long]), f"{KAFKA}?protocol={protocol}"
    )

    assert (error.setting, error.reason) == (f"{table}.{name}", reason)


def test_a_feed_needs_a_protocol() -> None:
    error = refused(ChangefeedConfig.from_uri, KAFKA)

    assert error.setting == "protocol"
    assert error.reason == (
        "neither sink URI nor file names it; use one of open-protocol, canal-json, simple, craft, cdc"
    )


def test_a_file_that_is_not_toml() -> None:
    error = refused(ChangefeedConfig.from_toml, "[sink\n")

    assert error.setting == "changefeed"
    assert error.reason.startswith("the file is not TOML: ")
    assert "line 1" in error.reason


def test_errors_are_sentences() -> None:
    error = refused(
        ChangefeedConfig.from_toml, "[sink]\ndispatchers = [{matcher = ['a.b'], partition = 'tss'}]"
    )

    assert str(error) == (
        "The setting 'sink.dispatchers[0].partition' in the changefeed file cannot be used: "
        "there is no rule 'tss'; did you mean 'ts'."
    )


@pytest.mark.parametrize(
    "database, table, expected",
    [
        ("shop", "orders", True),
        ("SHOP", "Orders", True),
        ("shop", "secrets", False),
        ("mysql", "user", False),
        ("INFORMATION_SCHEMA", "tables", False),
    ],
)
def test_tables_that_a_feed_has(database: str, table: str, expected: bool) -> None:
    config = ChangefeedConfig(filter_rules=("*.*", "!*.secrets"))

    assert config.replicates(database, table) is expected


@pytest.mark.parametrize(
    "file, expected",
    [
        ("", True),
        ("[sink]\nsend-bootstrap-interval-in-sec = 0", False),
        ("[sink]\nsend-bootstrap-in-msg-count = -1", False),
    ],
)
def test_bootstraps_can_be_turned_off(file: str, expected: bool) -> None:
    assert ChangefeedConfig.from_toml(file, f"{KAFKA}?protocol=simple").sends_bootstrap is expected
    assert not ChangefeedConfig.from_toml(file, f"{KAFKA}?protocol=craft").sends_bootstrap


def test_a_config_can_be_sent_to_workers() -> None:
    config = ChangefeedConfig.from_toml(
        WHOLE_FILE, f"{KAFKA}?sasl-mechanism=plain&sasl-user=u&sasl-password=p"
    )

    assert pickle.loads(pickle.dumps(config)) == config


# --- Kafka ----------------------------------------------------------------------------------------

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    "scheme, query, expected",
    [
        ("kafka", "", {}),
        ("kafka", "enable-tls=false", {}),
        ("kafka", "enable-tls=true", {"security.protocol": "SSL"}),
        ("kafka+ssl", "", {"security.protocol": "SSL"}),
        (
            "kafka",
            "ca=/c/ca.pem",
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/c/ca.pem",
            },
        ),
        (
            "kafka",
            "ca=/ca.pem&cert=/both.pem&key=/both.pem&insecure-skip-verify=true",
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/ca.pem",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "/both.pem",
                "ssl.endpoint.identification.algorithm": "",
            },
        ),
        (
            "kafka",
            "sasl-mechanism=plain&sasl-user=al%22ice&sasl-password=a%5C%22b%0A",
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": PLAIN + r' required username="al\"ice" password="a\\\"b\n";',
            },
        ),
        (
            "kafka",
            "enable-tls=true&sasl-mechanism=scram-sha-256&sasl-user=u&sasl-password=p",
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": SCRAM + ' required username="u" password="p";',
            },
        ),
        (
            "kafka",
            "sasl-mechanism=gssapi&sasl-gssapi-auth-type=keytab&sasl-gssapi-keytab-path=/k"
            "&sasl-gssapi-service-name=kafka&sasl-gssapi-user=alice/for-kafka"
            "&sasl-gssapi-realm=example.com&sasl-gssapi-kerberos-config-path=/etc/krb5.conf",
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.service.name": "kafka",
                "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required "
                'useKeyTab=true storeKey=true keyTab="/k" principal="alice/for-kafka@example.com";',
            },
        ),
        (
            "kafka",
            "kafka-client-id=me&dial-timeout=2s&read-timeout=3s&write-timeout=4s",
            {
                "client.id": "me",
                "socket.connection.setup.timeout.ms": "2000",
                "request.timeout.ms": "3000",
            },
        ),
        (
            "kafka",
            "dial-timeout=1m",
            {
                "socket.connection.setup.timeout.ms": "60000",
                "socket.connection.setup.timeout.max.ms": "60000",
            },
        ),
    ],
)
def test_a_connection_in_the_words_of_spark(
    scheme: str, query: str, expected: dict[str, str]
) -> None:
    uri = SinkUri.parse(f"{scheme}://a:1,b:2/t?{query}")
    options = {f"kafka.{name}": value for name, value in expected.items()}

    assert uri.kafka_options() == {"kafka.bootstrap.servers": "a:1,b:2"} | options


def test_certificate_and_key_in_two_files_must_be_read() -> None:
    uri = SinkUri.parse(f"{KAFKA}?ca=/ca&cert=/cert&key=/key")

    error = refused(uri.kafka_options)
    assert error.setting == "key"
    assert error.reason.startswith("Kafka's Java client wants certificate and key in one file")
    assert uri.kafka_options(lambda path: f"content of {path}") == {
        "kafka.bootstrap.servers": "h:9092",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "content of /ca",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "content of /cert",
        "kafka.ssl.keystore.key": "content of /key",
    }


def test_oauth_comes_from_the_file() -> None:
    config = ChangefeedConfig.from_toml(
        """
        [sink.kafka-config]
        sasl-mechanism = "OAUTHBEARER"
        sasl-oauth-client-id = "me"
        sasl-oauth-client-secret = "aHVudGVyMg=="
        sasl-oauth-token-url = "https://h/token"
        sasl-oauth-scopes = ["a", "b"]
        sasl-oauth-grant-type = "client_credentials"
        """,
        f"{KAFKA}?protocol=simple&enable-tls=true",
    )
    oauth = "org.apache.kafka.common.security.oauthbearer"

    assert config.kafka_options() == {
        "kafka.bootstrap.servers": "h:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": f"{oauth}.OAuthBearerLoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://h/token",
        "kafka.sasl.jaas.config": f"{oauth}.OAuthBearerLoginModule required "
        'clientId="me" clientSecret="hunter2" scope="a b";',
    }
    assert config.java_options() == (
        "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=https://h/token",
    )


@pytest.mark.parametrize(
    "query, expected",
    [
        ("", {"acks": "all"}),
        ("required-acks=-1", {"acks": "all"}),
        ("required-acks=0&compression=zstd", {"acks": "0", "compression.type": "zstd"}),
        (
            "max-message-bytes=99&read-timeout=3m",
            {"acks": "all", "max.request.size": "99", "delivery.timeout.ms": "180000"},
        ),
    ],
)
def test_what_a_writer_needs(query: str, expected: dict[str, str]) -> None:
    config = ChangefeedConfig.from_uri(f"{KAFKA}?protocol=simple&{query}")

    assert config.producer_options() == {f"kafka.{name}": value for name, value in expected.items()}


def test_kerberos_settings_are_told_to_the_jvm() -> None:
    config = ChangefeedConfig.from_uri(
        f"{KAFKA}?protocol=simple&sasl-mechanism=gssapi&sasl-gssapi-auth-type=keytab"
        "&sasl-gssapi-keytab-path=/k&sasl-gssapi-service-name=kafka&sasl-gssapi-user=a"
        "&sasl-gssapi-realm=R&sasl-gssapi-kerberos-config-path=/etc/krb5.conf"
    )

    assert config.java_options() == ("-Djava.security.krb5.conf=/etc/krb5.conf",)


@pytest.mark.parametrize(
    "query, setting, reason",
    [
        ("cert=/c", "key", "it must be given together with 'cert'"),
        ("key=/c", "cert", "it must be given together with 'key'"),
        ("enable-tls=false&ca=/c", "enable-tls", "it is false, but 'ca' is given"),
        ("sasl-user=u", "sasl-user", "it does nothing unless 'sasl-mechanism' is given too"),
        (
            "sasl-mechanism=plain&sasl-user=u",
            "sasl-password",
            "the mechanism plain needs it, and it is not given",
        ),
        (
            "sasl-mechanism=gssapi&sasl-gssapi-auth-type=user",
            "sasl-gssapi-auth-type",
            "Kafka's Java client logs in to Kerberos with a keytab only: use 'keytab' and give "
            "'sasl-gssapi-keytab-path'",
        ),
        (
            "sasl-mechanism=gssapi&sasl-gssapi-auth-type=keytab",
            "sasl-gssapi-keytab-path",
            "the mechanism gssapi needs it, and it is not given",
        ),
        (
            "sasl-mechanism=gssapi&sasl-gssapi-auth-type=keytab&sasl-gssapi-disable-pafxfast=true",
            "sasl-gssapi-disable-pafxfast",
            "Java's Kerberos has no such switch: leave it out",
        ),
        (
            "sasl-mechanism=oauthbearer",
            "sasl-oauth-client-id",
            "the mechanism oauthbearer needs it, and it is not given",
        ),
    ],
)
def test_a_connection_that_contradicts_itself(query: str, setting: str, reason: str) -> None:
    error = refused(ChangefeedConfig.from_uri, f"{KAFKA}?protocol=simple&{query}")

    assert (error.setting, error.reason) == (setting, reason)


@pytest.mark.parametrize(
    "lines, setting, reason",
    [
        (
            ["grant-type = 'password'"],
            "sasl-oauth-grant-type",
            "Kafka's Java client knows only 'client_credentials'",
        ),
        (
            ["audience = 'kafka'"],
            "sasl-oauth-audience",
            "Kafka's Java client asks for tokens without an audience: leave it out and have the "
            "token service give one by default",
        ),
        (
            ["client-secret = 'no base64!'"],
            "sasl-oauth-client-secret",
            "it must be the secret in base64",
        ),
    ],
)
def test_oauth_that_the_java_client_cannot_do(lines: list[str], setting: str, reason: str) -> None:
    given = {"client-id": "'a'", "client-secret": "'YQ=='", "token-url": "'https://h'"}
    given |= dict(line.split(" = ") for line in lines)
    keys = "\n".join(f"sasl-oauth-{name} = {value}" for name, value in given.items())
    file = f"[sink.kafka-config]\nsasl-mechanism = 'oauthbearer'\n{keys}"
    error = refused(ChangefeedConfig.from_toml, file, f"{KAFKA}?protocol=simple")

    assert (error.setting, error.reason) == (setting, reason)


def test_a_scheme_with_tls_has_tls() -> None:
    error = refused(ChangefeedConfig.from_uri, "kafka+ssl://h:1/t?protocol=simple&enable-tls=false")

    assert error.reason == "it is false, but the scheme is kafka+ssl"


@pytest.mark.parametrize("uri", [None, "file:///x?protocol=simple"])
def test_without_kafka_there_is_no_connection(uri: str | None) -> None:
    config = ChangefeedConfig.from_toml("[sink.kafka-config]\nsasl-user = 'u'", uri)

    assert refused(config.kafka_options).setting == "sink-uri"
    assert (
        refused(SinkUri.parse("file:///x").kafka_options).reason == "it names a capture, not Kafka"
    )


# --- the table of settings ------------------------------------------------------------------------


def test_every_setting_that_is_not_used_says_why() -> None:
    silent = [
        setting.path for setting in SETTINGS if setting.fate is not Fate.USED and not setting.why
    ]

    assert silent == []
    assert len({setting.path for setting in SETTINGS}) == len(SETTINGS)


def test_every_documented_parameter_is_known() -> None:
    """The table of TiCDC's page on sinking to Kafka."""
    documented = """
        kafka-version kafka-client-id partition-num max-message-bytes replication-factor
        required-acks compression protocol auto-create-topic enable-tidb-extension max-batch-size
        enable-tls ca cert key insecure-skip-verify sasl-user sasl-password sasl-mechanism
        sasl-gssapi-auth-type sasl-gssapi-keytab-path sasl-gssapi-kerberos-config-path
        sasl-gssapi-service-name sasl-gssapi-user sasl-gssapi-password sasl-gssapi-realm
        sasl-gssapi-disable-pafxfast dial-timeout read-timeout write-timeout
        avro-decimal-handling-mode avro-bigint-unsigned-handling-mode content-compatible
        only-output-updated-columns encoding-format
    """

    assert set(documented.split()) - BY_PARAMETER.keys() == set()


@pytest.mark.parametrize(
    "parameters, sends",
    [
        ("protocol=open-protocol", True),
        ("protocol=simple", True),
        ("protocol=craft", True),
        ("protocol=canal-json&enable-tidb-extension=true", True),
        ("protocol=canal-json", False),
        ("protocol=cdc", False),
    ],
)
def test_which_feeds_have_watermarks(parameters: str, sends: bool) -> None:
    config = ChangefeedConfig.from_uri(f"kafka://host:9092/topic?{parameters}")
    assert config.sends_watermarks is sends
