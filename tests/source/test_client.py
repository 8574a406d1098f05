"""The Kafka client: settings of a sink URI in librdkafka's words, tried on a broker that asks."""

import json
import subprocess
import threading
import time
from base64 import b64encode, urlsafe_b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote

import pytest

from tests.support.corpus import Message
from tests.support.kafka import broker, free_port
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.model import ConfigError, SourceError
from tidegate.source.base import RoundLimits
from tidegate.source.client import Connection, can_connect, client_settings
from tidegate.source.kafka import KafkaSource

SECRET = b64encode(b"the secret").decode()
OAUTH = {
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauth_client_id": "me",
    "sasl_oauth_client_secret": SECRET,
    "sasl_oauth_token_url": "http://127.0.0.1:1/token",
}
KERBEROS = {
    "sasl_mechanism": "GSSAPI",
    "sasl_gssapi_auth_type": "keytab",
    "sasl_gssapi_keytab_path": "/k.keytab",
    "sasl_gssapi_service_name": "kafka",
    "sasl_gssapi_user": "me",
    "sasl_gssapi_realm": "REALM",
}


def config(scheme="kafka", place="a:1,b:2/t", **parameters):
    """The settings of a sink URI; those of OAuth, which it cannot have, are in the file."""
    names = {name.replace("_", "-"): str(value) for name, value in parameters.items()}
    in_file = {name: value for name, value in names.items() if name.startswith("sasl-oauth")}
    query = "".join(
        f"&{name}={quote(value, safe='')}" for name, value in names.items() if name not in in_file
    )
    scopes = in_file.pop("sasl-oauth-scopes", None)
    lines = [f"{name} = {json.dumps(value)}" for name, value in in_file.items()]
    lines += [f"sasl-oauth-scopes = ['{scopes}']"] if scopes else []
    text = "\n".join(["[sink.kafka-config]", *lines])
    return ChangefeedConfig.from_toml(text, f"{scheme}://{place}?protocol=craft{query}")


@pytest.mark.parametrize(
    ("scheme", "parameters", "expected"),
    [
        ("kafka", {}, {"security.protocol": "PLAINTEXT"}),
        ("kafka+ssl", {}, {"security.protocol": "SSL"}),
        (
            "kafka",
            {"ca": "ca.pem", "cert": "c.pem", "key": "k.pem"},
            {
                "security.protocol": "SSL",
                "ssl.ca.location": "ca.pem",
                "ssl.certificate.location": "c.pem",
                "ssl.key.location": "k.pem",
            },
        ),
        (
            "kafka+ssl",
            {"insecure_skip_verify": "true"},
            {"security.protocol": "SSL", "enable.ssl.certificate.verification": False},
        ),
        (
            "kafka",
            {"sasl_mechanism": "PLAIN", "sasl_user": "u", "sasl_password": "p"},
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "p",
            },
        ),
        (
            "kafka+ssl",
            {"sasl_mechanism": "SCRAM-SHA-512", "sasl_user": "u", "sasl_password": "p"},
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanisms": "SCRAM-SHA-512",
                "sasl.username": "u",
                "sasl.password": "p",
            },
        ),
        (
            "kafka+ssl",
            OAUTH | {"sasl_oauth_scopes": "read"},
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": "the secret",
                "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
                "sasl.oauthbearer.scope": "read",
            },
        ),
        (
            "kafka",
            KERBEROS,
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "GSSAPI",
                "sasl.kerberos.service.name": "kafka",
                "sasl.kerberos.keytab": "/k.keytab",
                "sasl.kerberos.principal": "me@REALM",
            },
        ),
        (
            "kafka",
            {"kafka_client_id": "x", "dial_timeout": "3s", "read_timeout": "5s"},
            {
                "security.protocol": "PLAINTEXT",
                "client.id": "x",
                "socket.connection.setup.timeout.ms": 3000,
                "socket.timeout.ms": 5000,
            },
        ),
    ],
)
def test_settings_are_those_of_the_sink_uri(scheme, parameters, expected):
    found = client_settings(config(scheme, **parameters))
    assert found == {"bootstrap.servers": "a:1,b:2", "log_level": 0} | expected


def test_kerberos_is_refused_with_the_way_out_where_the_client_has_none():
    wanted = config(**KERBEROS)
    if can_connect(wanted):
        assert Connection.of(wanted).settings["sasl.mechanisms"] == "GSSAPI"
        pytest.skip("this confluent-kafka has Kerberos")
    with pytest.raises(ConfigError, match=r"'sasl-mechanism'.*no Kerberos.*build it against"):
        KafkaSource(wanted)
    assert can_connect(config(**OAUTH))
    assert can_connect(config())


def test_a_certificate_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"'ca'.*the file '.*none\.pem' cannot be read on"):
        KafkaSource(config(ca=tmp_path / "none.pem")).head(1)


# --- a broker that asks for who is there ----------------------------------------------------------


def token():
    """A token without a signature, which the broker is told to take."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": "me", "iat": now, "exp": now + 3600, "scope": "read"})
    encoded = [urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*encoded, b""]).decode()


class Tokens(BaseHTTPRequestHandler):
    """Gives tokens to those who know the secret."""

    def do_POST(self):
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        login = "Basic " + b64encode(b"me:the secret").decode()
        granted = self.headers["Authorization"] == login and asked["scope"] == ["read"]
        answer = {"access_token": token(), "token_type": "Bearer", "expires_in": 3600}
        body = json.dumps(answer if granted else {"error": "invalid_client"}).encode()
        self.send_response(200 if granted else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def token_url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tokens)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/token"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A broker with ports for logins and for TLS; its certificate; a topic with one message."""
    folder = tmp_path_factory.mktemp("certificates")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names]
    subprocess.run(
        [*new, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60
    )
    both = folder / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    ports = {"SASL": free_port(), "TLS": free_port()}
    module = "org.apache.kafka.common.security"
    properties = f"""
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL
sasl.enabled.mechanisms=PLAIN,OAUTHBEARER
listener.name.sasl.plain.sasl.jaas.config={module}.plain.PlainLoginModule required user_me="pass";
listener.name.sasl.oauthbearer.sasl.jaas.config={module}.oauthbearer.OAuthBearerLoginModule \
required unsecuredLoginStringClaim_sub="broker";
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={both}
"""
    with broker(listeners=ports, properties=properties) as running:
        running.create("t", partitions=1)
        running.send({"t": [Message(0, None, b"v")]})
        yield ports, certificate


def head(scheme, port, **parameters):
    return KafkaSource(config(scheme, f"127.0.0.1:{port}/t", **parameters)).head(1)


def test_a_login_by_password_reads(guarded):
    ports, _ = guarded
    login = {"sasl_mechanism": "PLAIN", "sasl_user": "me"}
    assert head("kafka", ports["SASL"], **login, sasl_password="pass") == [(None, b"v")]
    with pytest.raises(SourceError, match="it refuses the login"):
        head("kafka", ports["SASL"], **login, sasl_password="other")


def test_a_login_by_oauth_reads(guarded, token_url):
    ports, _ = guarded
    login = OAUTH | {"sasl_oauth_token_url": token_url, "sasl_oauth_scopes": "read"}
    assert head("kafka", ports["SASL"], **login) == [(None, b"v")]
    wrong = login | {"sasl_oauth_client_secret": b64encode(b"guess").decode()}
    with pytest.raises(SourceError, match="it refuses the login"):
        head("kafka", ports["SASL"], **wrong)


def test_tls_reads_with_the_certificate_and_not_without(guarded):
    ports, certificate = guarded
    assert head("kafka", ports["TLS"], ca=certificate) == [(None, b"v")]
    assert head("kafka+ssl", ports["TLS"], insecure_skip_verify="true") == [(None, b"v")]
    with pytest.raises(SourceError, match="TLS fails"):
        head("kafka+ssl", ports["TLS"])


def test_a_plan_says_which_settings_are_wrong_within_seconds(guarded):
    ports, _ = guarded
    started = time.monotonic()
    with pytest.raises(SourceError, match=r"Check whether the port expects TLS|does not answer"):
        KafkaSource(config(place=f"127.0.0.1:{ports['SASL']}/t")).plan({}, RoundLimits())
    assert time.monotonic() - started < 7
