"""Plays TiDB in front of a real MariaDB: a proxy of MySQL's protocol on loopback.

Statements that only TiDB knows are answered by the test, or rewritten for MariaDB; all others go
through untouched, and so does every answer. A connection can be cut after so many bytes of answers.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.mariadb import PASSWORD, USER
from tidegate.changefeed.config.settings import Secret
from tidegate.upstream.server import DatabaseServer

COM_QUERY = 3
Rows = list[tuple[str | None, ...]]


@dataclass(frozen=True)
class Refusal:
    """An error that the server answers with."""

    code: int
    message: str


Answer = Rows | Refusal | str
"""Rows or an error for the client, or another statement for MariaDB."""


@dataclass
class TidbProxy:
    """What it was asked is in `statements`; `answers` are tried in order, None goes through."""

    upstream_port: int
    answers: list[Callable[[str], Answer | None]] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    """After how many bytes of answers a connection is cut: the first time, the next time, …"""

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def server(self) -> DatabaseServer:
        port = self._listener.getsockname()[1]
        return DatabaseServer("127.0.0.1", port, USER, Secret(PASSWORD))

    def answer(self, pattern: str, answer: Answer | Callable[[re.Match[str]], Answer]) -> None:
        """Answers statements that match a pattern as a whole; the newest rule goes first."""

        def rule(statement: str) -> Answer | None:
            match = re.fullmatch(pattern, statement, re.DOTALL)
            if match is None:
                return None
            return answer(match) if callable(answer) else answer

        self.answers.insert(0, rule)

    def cut_all(self) -> None:
        """Ends every connection as a failing network does."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._listener.fileno() < 0:
            return
        self._listener.shutdown(socket.SHUT_RDWR)  # else one more could be accepted
        self._thread.join()
        self._listener.close()
        self.cut_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                upstream = socket.create_connection(("127.0.0.1", self.upstream_port))
            except OSError:
                client.close()
                continue
            self._open += [client, upstream]
            threading.Thread(target=self._serve, args=(client, upstream), daemon=True).start()

    def _serve(self, client: socket.socket, upstream: socket.socket) -> None:
        commands = threading.Event()
        pump = threading.Thread(target=self._pump, args=(upstream, client, commands), daemon=True)
        pump.start()
        try:
            while packet := _packet(client):
                if packet[3] == 0 and packet[4] == COM_QUERY:
                    commands.set()
                    packet = self._asked(client, packet)
                if packet:
                    upstream.sendall(packet)
        except OSError:
            pass  # either end is gone, which is what tests are about
        finally:
            for each in (upstream, client):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            pump.join()
            upstream.close()
            client.close()

    def _asked(self, client: socket.socket, packet: bytes) -> bytes:
        """What goes on to MariaDB."""
        statement = packet[5:].decode()
        self.statements.append(statement)
        for rule in self.answers:
            answer = rule(statement)
            if isinstance(answer, str):
                payload = bytes([COM_QUERY]) + answer.encode()
                return _framed(payload, 0)
            if answer is not None:
                client.sendall(_response(answer))
                return b""
        return packet

    def _pump(
        self, upstream: socket.socket, client: socket.socket, commands: threading.Event
    ) -> None:
        try:
            while data := upstream.recv(65536):
                if commands.is_set() and self.cuts:
                    self.cuts[0] -= len(data)
                    if self.cuts[0] < 0:
                        del self.cuts[0]
                        break
                client.sendall(data)
        except OSError:
            pass  # either end is gone
        finally:
            for each in (upstream, client):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


def _packet(source: socket.socket) -> bytes:
    header = _exactly(source, 4)
    return header and header + _exactly(source, int.from_bytes(header[:3], "little"))


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data


def _framed(payload: bytes, sequence: int) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([sequence % 256]) + payload


def encoded_length(size: int) -> bytes:
    """A length as the protocol writes it."""
    if size < 251:
        return bytes([size])
    if size < 1 << 16:
        return b"\xfc" + struct.pack("<H", size)
    if size < 1 << 24:
        return b"\xfd" + struct.pack("<I", size)[:3]
    return b"\xfe" + struct.pack("<Q", size)


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return encoded_length(len(data)) + data


def row_payload(values: Sequence[str | bytes | None]) -> bytes:
    """A row of the text protocol."""
    return b"".join(b"\xfb" if value is None else _text(value) for value in values)


END_OF_ROWS = b"\xfe\x00\x00\x02\x00"


def error_payload(code: int, message: str) -> bytes:
    return b"\xff" + struct.pack("<H", code) + b"#HY000" + message.encode()


def _response(answer: Rows | Refusal) -> bytes:
    if isinstance(answer, Refusal):
        return _framed(error_payload(answer.code, answer.message), 1)
    if not answer:  # OK
        return _framed(b"\x00\x00\x00\x02\x00\x00\x00", 1)
    column = b"".join(map(_text, ("def", "", "", "", "c", "")))
    column += b"\x0c" + struct.pack("<HIBHBxx", 45, 1024, 0xFD, 0, 0)
    payloads = [bytes([len(answer[0])]), *[column] * len(answer[0]), END_OF_ROWS]
    payloads += [*map(row_payload, answer), END_OF_ROWS]
    return packets(payloads, 1)


def packets(payloads: Sequence[bytes], sequence: int) -> bytes:
    """Payloads as packets, large ones as several."""
    stream = b""
    for payload in payloads:
        while len(payload) >= 0xFFFFFF:
            stream += _framed(payload[:0xFFFFFF], sequence)
            payload, sequence = payload[0xFFFFFF:], sequence + 1
        stream += _framed(payload, sequence)
        sequence += 1
    return stream


@contextlib.contextmanager
def tidb_proxy(port: int) -> Iterator[TidbProxy]:
    """A proxy in front of the server at a port of loopback, with what a plain TiDB answers."""
    proxy = TidbProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
