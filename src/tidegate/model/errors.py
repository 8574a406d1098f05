"""Every error Tidegate raises, in one tree.

Each error carries its facts as fields and says them, with the next step, in its message. Decoders
do not raise for a bad message in a batch: they report it as an event that holds the same fields.
"""

from __future__ import annotations

from collections.abc import Iterable


class TidegateError(Exception):
    """Base of every error that Tidegate raises."""


def _where(topic: str | None, partition: int | None, offset: int | None) -> str:
    """The place of a message in words, or nothing where it is not known."""
    parts = []
    if topic:
        parts.append(f"topic {topic!r}")
    if partition is not None:
        parts.append(f"partition {partition}")
    if offset is not None:
        parts.append(f"offset {offset}")
    return ", ".join(parts)


class DecodeError(TidegateError):
    """A message cannot be read; `position` is the byte of `part` (key, value) where it failed."""

    def __init__(
        self,
        code: str,
        reason: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        part: str | None = None,
        position: int | None = None,
    ) -> None:
        self.code = code
        self.reason = reason
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.part = part
        self.position = position
        super().__init__(code, reason)

    def __str__(self) -> str:
        place = _where(self.topic, self.partition, self.offset)
        of_message = f" of the message at {place}" if place else ""
        if self.part is not None and self.position is not None:
            subject = f"the {self.part}{of_message} at byte {self.position}"
        elif self.part is not None:
            subject = f"the {self.part}{of_message}"
        else:
            subject = f"the message at {place}" if place else "the message"
        return (
            f"Cannot decode {subject}: {self.reason} ({self.code}). "
            "Check that the protocol and the compression named are those of the changefeed."
        )


class EncodeError(TidegateError):
    """A change cannot be written in the protocol asked for; `field` names the column or member."""

    def __init__(
        self,
        protocol: str,
        reason: str,
        *,
        database: str | None = None,
        table: str | None = None,
        field: str | None = None,
    ) -> None:
        self.protocol = protocol
        self.reason = reason
        self.database = database
        self.table = table
        self.field = field
        super().__init__(protocol, reason)

    def __str__(self) -> str:
        name = ".".join(part for part in (self.database, self.table, self.field) if part)
        of_name = f" {name}" if name else " the change"
        return (
            f"Cannot encode{of_name} as {self.protocol}: {self.reason}. "
            "Correct the change or its schema, or leave the row out."
        )


class UnknownProtocol(TidegateError):
    """No protocol has this name."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(name)

    def __str__(self) -> str:
        choice = f" Use one of: {', '.join(self.known)}." if self.known else ""
        return f"There is no protocol named {self.name!r}.{choice}"


class UnsupportedByProtocol(TidegateError):
    """The protocol has no place for what is asked of it."""

    def __init__(self, protocol: str, feature: str, *, instead: str | None = None) -> None:
        self.protocol = protocol
        self.feature = feature
        self.instead = instead
        super().__init__(protocol, feature)

    def __str__(self) -> str:
        step = self.instead or "Choose another protocol or turn the option off"
        return f"The protocol {self.protocol} does not carry {self.feature}. {step}."


class ClaimCheckError(TidegateError):
    """The object that holds a large message is missing or is not what the message said."""

    def __init__(self, location: str, reason: str) -> None:
        self.location = location
        self.reason = reason
        super().__init__(location, reason)

    def __str__(self) -> str:
        return (
            f"Cannot read the claim-check object {self.location!r}: {self.reason}. "
            "Give the claim-check storage of the changefeed and check that the object still exists."
        )


class CompressionError(TidegateError):
    """A value does not decompress by the algorithm named, or grows beyond the limit."""

    def __init__(self, algorithm: str, reason: str) -> None:
        self.algorithm = algorithm
        self.reason = reason
        super().__init__(algorithm, reason)

    def __str__(self) -> str:
        return (
            f"Cannot decompress the value as {self.algorithm}: {self.reason}. "
            "Check the changefeed's large-message-handle-compression."
        )


class CaptureError(TidegateError):
    """A line of a capture file is not a message, or (line 0) the file cannot be read at all."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        self.path = path
        self.line = line
        self.reason = reason
        super().__init__(path, line, reason)

    def __str__(self) -> str:
        if self.line == 0:
            return (
                f"Cannot read the capture {self.path!r}: {self.reason}. "
                "Check the path, or make the capture again."
            )
        return (
            f"Line {self.line} of the capture {self.path!r} is not a message: {self.reason}. "
            "Correct or remove the line, or make the capture again."
        )


class SchemaNotSeen(TidegateError):
    """A row names a table schema that no schema event has brought yet."""

    def __init__(
        self,
        database: str,
        table: str,
        *,
        version: int | None = None,
        shape: int | None = None,
    ) -> None:
        self.database = database
        self.table = table
        self.version = version
        self.shape = shape
        super().__init__(database, table)

    def __str__(self) -> str:
        which = f" version {self.version}" if self.version is not None else ""
        which += f" shape {self.shape}" if self.shape is not None else ""
        return (
            f"The schema of {self.database}.{self.table}{which} has not been seen. "
            "Read the feed from an earlier offset, or wait for its next schema message."
        )


class SchemaError(TidegateError):
    """A table schema's JSON is not of the form that the Simple protocol gives it."""

    def __init__(self, member: str, reason: str) -> None:
        self.member = member
        self.reason = reason
        super().__init__(member, reason)

    def __str__(self) -> str:
        return (
            f"The table schema cannot be read: {self.member} {self.reason}. "
            "Give a tableSchema object as the Simple protocol writes it."
        )


class ConfigError(TidegateError):
    """A setting is missing, misspelt or out of its range."""

    def __init__(self, setting: str, reason: str, *, source: str | None = None) -> None:
        self.setting = setting
        self.reason = reason
        self.source = source
        super().__init__(setting, reason)

    def __str__(self) -> str:
        place = f" in {self.source}" if self.source else ""
        return f"The setting {self.setting!r}{place} cannot be used: {self.reason}."


class SparkError(TidegateError):
    """Spark cannot do what is asked of it: Java, a jar or a setting is missing."""

    def __init__(self, reason: str, step: str) -> None:
        self.reason = reason
        self.step = step
        super().__init__(reason, step)

    def __str__(self) -> str:
        return f"Spark cannot be used: {self.reason}. {self.step}."


class SourceError(TidegateError):
    """A feed cannot be read on: its topic, offsets or messages are not there, or not as told."""

    def __init__(self, source: str, reason: str, step: str) -> None:
        self.source = source
        self.reason = reason
        self.step = step
        super().__init__(source, reason, step)

    def __str__(self) -> str:
        return f"Cannot read {self.source}: {self.reason}. {self.step}."


class SourceUnreachable(SourceError):
    """A feed cannot be read now, and may be readable later: nobody answers where it is."""


class DumpError(TidegateError):
    """A dump cannot be loaded: it is not complete, or a file is not as Dumpling writes it."""

    def __init__(self, path: str, reason: str, step: str) -> None:
        self.path = path
        self.reason = reason
        self.step = step
        super().__init__(path, reason, step)

    def __str__(self) -> str:
        return f"Cannot load the dump {self.path}: {self.reason}. {self.step}."


class LakeError(TidegateError):
    """The lake is not as it must be for what is asked; `step` says what to do."""

    def __init__(self, reason: str, step: str) -> None:
        self.reason = reason
        self.step = step
        super().__init__(reason, step)

    def __str__(self) -> str:
        return f"{self.reason}. {self.step}."


class SinkError(TidegateError):
    """A feed cannot be written to: its broker or topic is not there, or not as told."""

    def __init__(self, sink: str, reason: str, step: str) -> None:
        self.sink = sink
        self.reason = reason
        self.step = step
        super().__init__(sink, reason, step)

    def __str__(self) -> str:
        return f"Cannot write to {self.sink}: {self.reason}. {self.step}."
