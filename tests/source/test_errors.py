"""Errors of tasks reach the driver as what they are, through no more than their text."""

import pickle

import pytest

from tidegate.model import CaptureError, ConfigError, DecodeError, SourceError
from tidegate.source.errors import TaskError, error_in, raised_in_task

ERRORS = [
    SourceError("the topic 't'", 'it says "no"\n(twice) \\ \'; größe', "Do that"),
    CaptureError("/a b.jsonl", 7, "a line is an object"),
    ConfigError("sasl-mechanism", "no Kerberos", source="the Kafka settings"),
    DecodeError("truncated", "it ends early", topic="t", partition=1, offset=5, part="value"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_found_in_the_text_of_a_failed_task(error):
    with pytest.raises(TaskError) as raised, raised_in_task():
        raise error
    assert str(raised.value).startswith(str(error))
    text = f"Job aborted: Traceback …\n  {type(raised.value)}: {raised.value}\n at org.apache…"
    for failure in (text, RuntimeError(text), pickle.loads(pickle.dumps(raised.value))):
        found = error_in(failure)
        assert type(found) is type(error)
        assert str(found) == str(error)
        assert vars(found) == vars(error)


def test_other_failures_are_not_taken_for_ours():
    assert error_in(RuntimeError("out of memory")) is None
    with pytest.raises(ZeroDivisionError), raised_in_task():
        raise ZeroDivisionError


def test_an_error_of_a_spark_task_reaches_the_driver(spark):
    from pyspark.errors import PySparkException

    def fail(batches):
        with raised_in_task():
            raise ERRORS[0]
        yield from batches

    with pytest.raises(PySparkException) as raised:
        spark.range(1).mapInArrow(fail, "id long").collect()
    assert str(error_in(raised.value)) == str(ERRORS[0])
