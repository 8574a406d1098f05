"""The one Kafka client: how to reach the brokers of a sink URI, and why they do not answer.

It needs confluent-kafka (`pip install 'tidegate[kafka]'`) and starts no JVM. Every request has a
time limit, and an error says what failed: the name, the connection, TLS or the login.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections import deque
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.model import ConfigError, SourceError, SourceUnreachable

ANSWER_SECONDS = 5.0
ATTEMPT_SECONDS = 1.5
"""How long one request waits: time for the other addresses of a host whose first one refuses."""

CHECK_STEP = "Check the address and the security settings, and that the broker runs"
_OTHER_SECURITY = "Check whether the port expects TLS (kafka+ssl://…) or a login (sasl-user=…)"
_SETTINGS = "the Kafka settings"

_FILES = {
    "ca": "ssl.ca.location",
    "cert": "ssl.certificate.location",
    "key": "ssl.key.location",
}

_NO_FEATURE = {
    "gssapi": (
        "sasl_gssapi",
        "the installed confluent-kafka has no Kerberos, as its wheels do not: build it against a "
        "librdkafka with SASL GSSAPI (pip install --no-binary confluent-kafka confluent-kafka), "
        "or use another mechanism",
    ),
    "oauthbearer": (
        "oidc",
        "the installed confluent-kafka cannot fetch OAuth tokens: install its wheel, or build it "
        "against a librdkafka with libcurl",
    ),
}
"""By mechanism: the feature of librdkafka that it needs, and what to do where it is missing."""


def library() -> Any:
    """The module confluent_kafka."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ModuleNotFoundError as error:
        raise SourceError(
            "Kafka", "confluent-kafka is not installed", "Run: pip install 'tidegate[kafka]'"
        ) from error
    return confluent_kafka


@cache
def _has_feature(name: str) -> bool:
    """Whether librdkafka was built with a feature."""
    kafka = library()
    try:
        # librdkafka accepts this setting only where it has all features that are named.
        kafka.Producer({"builtin.features": name, "log_level": 0})
    except kafka.KafkaException:
        return False
    return True


# --- settings -------------------------------------------------------------------------------------


def client_settings(config: ChangefeedConfig) -> dict[str, Any]:
    """How to reach Kafka, in the settings of librdkafka."""
    connection = config.kafka
    if connection is None:
        raise ConfigError("sink-uri", "it names no Kafka: write kafka://host:port/topic")
    values = connection.settings
    mechanism = values.get("sasl-mechanism")
    layers = ("SASL" if mechanism else "", "SSL" if connection.uses_tls else "PLAINTEXT")
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(connection.brokers),
        "security.protocol": "_".join(filter(None, layers)),
        "log_level": 0,
    }
    for name, option in (
        ("kafka-client-id", "client.id"),
        ("dial-timeout", "socket.connection.setup.timeout.ms"),
        ("read-timeout", "socket.timeout.ms"),
        *_FILES.items(),
    ):
        if name in values:
            settings[option] = values[name]
    if connection.uses_tls and values.get("insecure-skip-verify"):
        settings["enable.ssl.certificate.verification"] = False
    return settings if mechanism is None else settings | _sasl(mechanism, connection)


def _sasl(mechanism: str, connection: Any) -> dict[str, Any]:
    values: Mapping[str, Any] = connection.settings
    settings = {"sasl.mechanisms": mechanism.upper()}
    if mechanism == "gssapi":
        principal = f"{values['sasl-gssapi-user']}@{values['sasl-gssapi-realm']}"
        return settings | {
            "sasl.kerberos.service.name": values["sasl-gssapi-service-name"],
            "sasl.kerberos.keytab": values["sasl-gssapi-keytab-path"],
            "sasl.kerberos.principal": principal,
        }
    if mechanism == "oauthbearer":
        settings |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": values["sasl-oauth-client-id"],
            "sasl.oauthbearer.client.secret": connection.client_secret(),
            "sasl.oauthbearer.token.endpoint.url": values["sasl-oauth-token-url"].reveal(),
        }
        if scopes := values.get("sasl-oauth-scopes"):
            settings["sasl.oauthbearer.scope"] = " ".join(scopes)
        return settings
    return settings | {
        "sasl.username": values["sasl-user"],
        "sasl.password": values["sasl-password"].reveal(),
    }


def check_client(config: ChangefeedConfig) -> None:
    """Raises ConfigError where the installed client cannot log in as the settings ask."""
    mechanism = None if config.kafka is None else config.kafka.settings.get("sasl-mechanism")
    feature, reason = _NO_FEATURE.get(mechanism or "", ("", ""))
    if feature and not _has_feature(feature):
        raise ConfigError("sasl-mechanism", reason, source=_SETTINGS)


def can_connect(config: ChangefeedConfig) -> bool:
    """Whether the client is installed and can log in as the settings ask."""
    if find_spec("confluent_kafka") is None:
        return False
    try:
        check_client(config)
    except ConfigError:
        return False
    return True


# --- the connection -------------------------------------------------------------------------------


class Connection:
    """Asks brokers for topics, and explains why they do not answer."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.kafka = library()
        self._settings = dict(settings)
        self._failures: deque[Any] = deque(maxlen=100)

    @classmethod
    def of(cls, config: ChangefeedConfig) -> Connection:
        """The connection of a changefeed; ConfigError where the client cannot log in so."""
        library()
        check_client(config)
        return cls(client_settings(config))

    def admin(self) -> Any:
        """A client that asks for topics and creates them."""
        return self._client(self.kafka.admin.AdminClient, {})

    def consumer(self, settings: Mapping[str, Any]) -> Any:
        """A client that reads."""
        return self._client(self.kafka.Consumer, settings)

    def producer(self, settings: Mapping[str, Any]) -> Any:
        """A client that writes."""
        return self._client(self.kafka.Producer, settings)

    def _client(self, kind: Any, settings: Mapping[str, Any]) -> Any:
        """A client whose failures are explained here."""
        for name, option in _FILES.items():
            path = self._settings.get(option)
            if path is not None and not os.access(path, os.R_OK):
                reason = f"the file {path!r} cannot be read on {socket.gethostname()}"
                raise ConfigError(name, reason, source=_SETTINGS)
        try:
            return kind({**self._settings, **settings, "error_cb": self._failures.append})
        except self.kafka.KafkaException as error:
            reason = error.args[0].str().rstrip(".")
            raise ConfigError("sink-uri", f"Kafka's client does not take it: {reason}") from error

    def topics(self, client: Any, *, patience: float = 0) -> Any:
        """All topics by name; KafkaException where nobody answers.

        With `patience` it waits that many seconds for a broker, also while all are down.
        """
        self._failures.clear()
        deadline = time.monotonic() + (patience or ANSWER_SECONDS)
        while True:
            left = max(0.1, min(ATTEMPT_SECONDS, deadline - time.monotonic()))
            try:
                return client.list_topics(timeout=left).topics
            except self.kafka.KafkaException:
                client.poll(0)  # calls back with what has failed
                down = self.kafka.KafkaError._ALL_BROKERS_DOWN
                all_down = any(each.code() == down for each in self._failures)
                if (all_down and not patience) or time.monotonic() >= deadline:
                    raise

    def failed(self, error: Any) -> SourceError:
        """The error of reading, explained."""
        kind = SourceUnreachable if self._is_unreachable(error) else SourceError
        return kind(*self.explained(error))

    def _is_unreachable(self, error: Any) -> bool:
        codes = self.kafka.KafkaError
        kinds = {each.code() for each in self._failures}
        is_refused = bool(kinds & {codes._AUTHENTICATION, codes._SSL})
        passing = {
            codes._TRANSPORT,
            codes._TIMED_OUT,
            codes._ALL_BROKERS_DOWN,
            codes._RESOLVE,
            codes._NOENT,  # no leaders are known while the brokers start
            codes.NETWORK_EXCEPTION,
            codes.REQUEST_TIMED_OUT,
            codes.LEADER_NOT_AVAILABLE,
            codes.NOT_LEADER_FOR_PARTITION,
        }
        return error.code() in passing and not is_refused

    def explained(self, error: Any) -> tuple[str, str, str]:
        """Who fails, why, and what to do next."""
        brokers = self._settings["bootstrap.servers"]
        return f"Kafka at {brokers}", *_reason(self.kafka, [*self._failures, error])


def _reason(kafka: Any, failures: list[Any]) -> tuple[str, str]:
    """Why Kafka fails, and what to do next; the last failure is the one that ended the request."""
    codes, error = kafka.KafkaError, failures[-1]
    kinds = {each.code() for each in failures}
    if codes._RESOLVE in kinds:
        step = "Check the host name in the sink URI, and this machine's DNS"
        return "its host name cannot be resolved", step
    logins = [each.str() for each in failures if each.code() == codes._AUTHENTICATION]
    if logins:
        step = "Check sasl-mechanism, sasl-user and sasl-password in the sink URI"
        return f"it refuses the login ({_brief(logins[0])})", step
    # A broker that hangs up within the handshake is a failure of transport.
    handshakes = [
        each.str()
        for each in failures
        if each.code() == codes._SSL or "SSL handshake" in each.str()
    ]
    if handshakes:
        step = "Check that the port speaks TLS, and ca, cert and key in the sink URI"
        return f"TLS fails ({_brief(handshakes[0])})", step
    if any("Connection refused" in each.str() for each in failures):
        return "it refuses the connection", "Check host and port, and that the broker runs"
    if codes._ALL_BROKERS_DOWN in kinds:
        return "it closes the connection at once", _OTHER_SECURITY
    if error.code() in (codes._TRANSPORT, codes._TIMED_OUT):
        return f"it does not answer within {ANSWER_SECONDS:g} seconds", CHECK_STEP
    return error.str().rstrip("."), CHECK_STEP


def _brief(text: str) -> str:
    """What librdkafka says of a failure, without the broker and the time."""
    return re.sub(r"^\S+/\S+: | \(after [^)]*\)$", "", text).strip(" :")


def check_brokers(config: ChangefeedConfig) -> None:
    """Raises SourceError where no broker of a feed answers."""
    connection = Connection.of(config)
    try:
        connection.topics(connection.admin())
    except connection.kafka.KafkaException as error:
        raise connection.failed(error.args[0]) from error
