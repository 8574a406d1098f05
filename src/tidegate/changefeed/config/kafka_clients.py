"""A changefeed's Kafka settings in the words of Kafka's Java client, as Spark takes them.

TiCDC reaches Kafka by a Go client, Spark by the Java one. Where the two cannot do the same, the
setting is refused with what to do instead, never dropped: a connection is as safe as was asked, or
there is none.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.changefeed.config.settings import Secret
from tidegate.model import ConfigError

_TABLE = "sink.kafka-config."
_SECURITY = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "plain": f"{_SECURITY}.plain.PlainLoginModule",
    "scram-sha-256": f"{_SECURITY}.scram.ScramLoginModule",
    "scram-sha-512": f"{_SECURITY}.scram.ScramLoginModule",
    "gssapi": "com.sun.security.auth.module.Krb5LoginModule",
    "oauthbearer": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
_JAAS_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"})

# Kafka's own defaults, which bound others: a longer time limit needs these to be longer too.
_LONGEST_CONNECTION_SETUP_MS = 30_000
_DELIVERY_TIMEOUT_MS = 120_000


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Where Kafka is and how to reach it: brokers, and the settings by their names."""

    brokers: tuple[str, ...]
    tls_by_scheme: bool
    settings: Mapping[str, Any]

    @classmethod
    def of(
        cls, brokers: tuple[str, ...], tls_by_scheme: bool, values: Mapping[str, Any]
    ) -> KafkaConnection:
        """From settings by their paths; raises ConfigError if they contradict each other."""
        settings = {
            path.removeprefix(_TABLE): value
            for path, value in values.items()
            if path.startswith(_TABLE) and value not in ("", (), Secret(""))
        }
        connection = cls(brokers, tls_by_scheme, settings)
        connection._check_tls()
        connection._check_sasl()
        return connection

    def options(self, read: Callable[[str], str] | None = None) -> dict[str, str]:
        """See `ChangefeedConfig.kafka_options`."""
        options = {"kafka.bootstrap.servers": ",".join(self.brokers)}
        options |= self._named("kafka-client-id", "kafka.client.id")
        options |= self._time_limits()
        mechanism = self.settings.get("sasl-mechanism")
        if mechanism is not None or self.uses_tls:
            layers = ("SASL" if mechanism else "", "SSL" if self.uses_tls else "PLAINTEXT")
            options["kafka.security.protocol"] = "_".join(filter(None, layers))
        if self.uses_tls:
            options |= self._tls(read)
        if mechanism is not None:
            options |= self._sasl(mechanism)
        return options

    def producer_options(self) -> dict[str, str]:
        """What a writer needs beside the connection."""
        options = {"kafka.acks": str(self.settings.get("required-acks", -1)).replace("-1", "all")}
        options |= self._named("compression", "kafka.compression.type")
        options |= self._named("max-message-bytes", "kafka.max.request.size")
        if self.settings.get("read-timeout", 0) > _DELIVERY_TIMEOUT_MS:
            options |= self._named("read-timeout", "kafka.delivery.timeout.ms")
        return options

    def java_options(self) -> tuple[str, ...]:
        """What only the JVM can be told, as options of its command line."""
        found = []
        if config := self.settings.get("sasl-gssapi-kerberos-config-path"):
            found.append(f"-Djava.security.krb5.conf={config}")
        if url := self.settings.get("sasl-oauth-token-url"):
            found.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url.reveal()}")
        return tuple(found)

    @property
    def uses_tls(self) -> bool:
        """Asked for, or implied by certificates."""
        files = any(name in self.settings for name in ("ca", "cert", "key"))
        return bool(self.settings.get("enable-tls", files or self.tls_by_scheme))

    def _named(self, setting: str, option: str) -> dict[str, str]:
        return {option: str(self.settings[setting])} if setting in self.settings else {}

    def _time_limits(self) -> dict[str, str]:
        setup = "kafka.socket.connection.setup.timeout"
        options = self._named("dial-timeout", f"{setup}.ms")
        if self.settings.get("dial-timeout", 0) > _LONGEST_CONNECTION_SETUP_MS:
            options |= self._named("dial-timeout", f"{setup}.max.ms")
        return options | self._named("read-timeout", "kafka.request.timeout.ms")

    # --- TLS ---

    def _check_tls(self) -> None:
        for one, other in (("cert", "key"), ("key", "cert")):
            if one in self.settings and other not in self.settings:
                raise self._error(other, f"it must be given together with {one!r}")
        if self.settings.get("enable-tls") is False:
            for name in ("ca", "cert", "key"):
                if name in self.settings:
                    raise self._error("enable-tls", f"it is false, but {name!r} is given")
            if self.tls_by_scheme:
                raise self._error("enable-tls", "it is false, but the scheme is kafka+ssl")

    def _tls(self, read: Callable[[str], str] | None) -> dict[str, str]:
        ca, cert, key = (self.settings.get(name) for name in ("ca", "cert", "key"))
        options = {}
        if ca is not None:
            options["kafka.ssl.truststore.type"] = "PEM"
            if read is None:
                options["kafka.ssl.truststore.location"] = ca
            else:
                options["kafka.ssl.truststore.certificates"] = read(ca)
        if cert is not None and key is not None:
            options["kafka.ssl.keystore.type"] = "PEM"
            if read is not None:
                options["kafka.ssl.keystore.certificate.chain"] = read(cert)
                options["kafka.ssl.keystore.key"] = read(key)
            elif cert == key:
                options["kafka.ssl.keystore.location"] = cert
            else:
                raise self._error(
                    "key",
                    "Kafka's Java client wants certificate and key in one file: write both into "
                    "one PEM file and name it as 'cert' and as 'key'",
                )
        if self.settings.get("insecure-skip-verify"):
            options["kafka.ssl.endpoint.identification.algorithm"] = ""
        return options

    # --- SASL ---

    def _check_sasl(self) -> None:
        mechanism = self.settings.get("sasl-mechanism")
        if mechanism is None:
            for name, value in self.settings.items():
                if name.startswith("sasl-") and value:
                    raise self._error(name, "it does nothing unless 'sasl-mechanism' is given too")
            return
        if mechanism == "gssapi":
            self._check_gssapi()
        elif mechanism == "oauthbearer":
            self._check_oauth()
        else:
            self._require(mechanism, "sasl-user", "sasl-password")

    def _check_gssapi(self) -> None:
        if self.settings.get("sasl-gssapi-auth-type") != "keytab":
            raise self._error(
                "sasl-gssapi-auth-type",
                "Kafka's Java client logs in to Kerberos with a keytab only: use 'keytab' and "
                "give 'sasl-gssapi-keytab-path'",
            )
        if self.settings.get("sasl-gssapi-disable-pafxfast"):
            raise self._error(
                "sasl-gssapi-disable-pafxfast",
                "Java's Kerberos has no such switch: leave it out",
            )
        names = ("keytab-path", "service-name", "user", "realm")
        self._require("gssapi", *(f"sasl-gssapi-{name}" for name in names))

    def _check_oauth(self) -> None:
        names = ("client-id", "client-secret", "token-url")
        self._require("oauthbearer", *(f"sasl-oauth-{name}" for name in names))
        if self.settings.get("sasl-oauth-grant-type", "client_credentials") != "client_credentials":
            raise self._error(
                "sasl-oauth-grant-type", "Kafka's Java client knows only 'client_credentials'"
            )
        if "sasl-oauth-audience" in self.settings:
            raise self._error(
                "sasl-oauth-audience",
                "Kafka's Java client asks for tokens without an audience: leave it out and have "
                "the token service give one by default",
            )
        self.client_secret()

    def _require(self, mechanism: str, *names: str) -> None:
        for name in names:
            if name not in self.settings:
                raise self._error(name, f"the mechanism {mechanism} needs it, and it is not given")

    def _sasl(self, mechanism: str) -> dict[str, str]:
        options = {"kafka.sasl.mechanism": mechanism.upper()}
        if mechanism == "gssapi":
            user, realm = (self.settings[f"sasl-gssapi-{name}"] for name in ("user", "realm"))
            login = {
                "keyTab": self.settings["sasl-gssapi-keytab-path"],
                "principal": f"{user}@{realm}",
            }
            fixed = " useKeyTab=true storeKey=true"
            service = self.settings["sasl-gssapi-service-name"]
            options["kafka.sasl.kerberos.service.name"] = service
        elif mechanism == "oauthbearer":
            login = {
                "clientId": self.settings["sasl-oauth-client-id"],
                "clientSecret": self.client_secret(),
            }
            if scopes := self.settings.get("sasl-oauth-scopes"):
                login["scope"] = " ".join(scopes)
            fixed = ""
            handler = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
            options["kafka.sasl.login.callback.handler.class"] = handler
            url = self.settings["sasl-oauth-token-url"].reveal()
            options["kafka.sasl.oauthbearer.token.endpoint.url"] = url
        else:
            login = {
                "username": self.settings["sasl-user"],
                "password": self.settings["sasl-password"].reveal(),
            }
            fixed = ""
        told = "".join(f' {name}="{text.translate(_JAAS_ESCAPES)}"' for name, text in login.items())
        jaas = f"{_LOGIN_MODULES[mechanism]} required{fixed}{told};"
        return options | {"kafka.sasl.jaas.config": jaas}

    def client_secret(self) -> str:
        """The OAuth secret, which TiCDC wants in base64."""
        text: str = self.settings["sasl-oauth-client-secret"].reveal()
        try:
            return b64decode(text, validate=True).decode()
        except ValueError:
            reason = "it must be the secret in base64"
        raise self._error("sasl-oauth-client-secret", reason)

    def _error(self, name: str, reason: str) -> ConfigError:
        return ConfigError(name, reason, source="the Kafka settings")
