"""Errors: one tree, facts as fields, sentences that say what to do."""

import inspect
import pickle

import pytest

from tidegate.model import errors

CASES = [
    (
        errors.DecodeError(
            "bad-json",
            "a comma is missing",
            topic="t",
            partition=2,
            offset=7,
            part="value",
            position=5,
        ),
        "Cannot decode the value of the message at topic 't', partition 2, offset 7 at byte 5: "
        "a comma is missing (bad-json). "
        "Check that the protocol and the compression named are those of the changefeed.",
    ),
    (
        errors.DecodeError("empty", "there is no value"),
        "Cannot decode the message: there is no value (empty). "
        "Check that the protocol and the compression named are those of the changefeed.",
    ),
    (
        errors.EncodeError("craft", "the value is no number", database="d", table="t", field="c"),
        "Cannot encode d.t.c as craft: the value is no number. "
        "Correct the change or its schema, or leave the row out.",
    ),
    (
        errors.UnknownProtocol("avor", ["open", "simple"]),
        "There is no protocol named 'avor'. Use one of: open, simple.",
    ),
    (
        errors.UnsupportedByProtocol("craft", "claim checks"),
        "The protocol craft does not carry claim checks. "
        "Choose another protocol or turn the option off.",
    ),
    (
        errors.ClaimCheckError("s3://b/x.json", "it does not exist"),
        "Cannot read the claim-check object 's3://b/x.json': it does not exist. "
        "Give the claim-check storage of the changefeed and check that the object still exists.",
    ),
    (
        errors.CompressionError("lz4", "the frame ends early"),
        "Cannot decompress the value as lz4: the frame ends early. "
        "Check the changefeed's large-message-handle-compression.",
    ),
    (
        errors.CaptureError("a.jsonl", 3, "the partition is missing"),
        "Line 3 of the capture 'a.jsonl' is not a message: the partition is missing. "
        "Correct or remove the line, or make the capture again.",
    ),
    (
        errors.CaptureError("a.jsonl", 0, "there is no such file"),
        "Cannot read the capture 'a.jsonl': there is no such file. "
        "Check the path, or make the capture again.",
    ),
    (
        errors.SchemaNotSeen("d", "t", version=9),
        "The schema of d.t version 9 has not been seen. "
        "Read the feed from an earlier offset, or wait for its next schema message.",
    ),
    (
        errors.SchemaError("'name'", "is missing"),
        "The table schema cannot be read: 'name' is missing. "
        "Give a tableSchema object as the Simple protocol writes it.",
    ),
    (
        errors.ConfigError("max-batch-size", "it must be above 0", source="cf.toml"),
        "The setting 'max-batch-size' in cf.toml cannot be used: it must be above 0.",
    ),
    (
        errors.SparkError("Java is missing", "Install a JDK"),
        "Spark cannot be used: Java is missing. Install a JDK.",
    ),
    (
        errors.SourceError("topic 't'", "it does not exist", "Create it"),
        "Cannot read topic 't': it does not exist. Create it.",
    ),
    (
        errors.SourceUnreachable("Kafka at k:9092", "it refuses the connection", "Check host"),
        "Cannot read Kafka at k:9092: it refuses the connection. Check host.",
    ),
    (
        errors.DumpError("d.t.csv", "the file is empty", "Make the dump again"),
        "Cannot load the dump d.t.csv: the file is empty. Make the dump again.",
    ),
    (
        errors.LakeError("The lake has no table d.t", "Look at what it has"),
        "The lake has no table d.t. Look at what it has.",
    ),
    (
        errors.SinkError("topic 't'", "it does not exist", "Create it"),
        "Cannot write to topic 't': it does not exist. Create it.",
    ),
]


@pytest.mark.parametrize(("error", "message"), CASES)
def test_an_error_says_its_facts_and_the_next_step(error, message):
    assert str(error) == message


@pytest.mark.parametrize(("error", "message"), CASES)
def test_an_error_crosses_processes_whole(error, message):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), message, vars(error))


def test_every_error_is_of_the_one_tree_and_is_shown_above():
    defined = {
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, Exception) and cls is not errors.TidegateError
    }
    assert all(issubclass(cls, errors.TidegateError) and cls.__doc__ for cls in defined)
    assert defined == {type(error) for error, _ in CASES}
