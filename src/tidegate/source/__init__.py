"""Where the messages of a feed are read from: Kafka and captures. No Spark."""

from tidegate.source.base import (
    RoundLimits,
    RoundPlan,
    Source,
    SourcePosition,
    SourceSplit,
    SplitReader,
)
from tidegate.source.capture import CaptureSource
from tidegate.source.errors import error_in, raised_in_task
from tidegate.source.kafka import KafkaSource

__all__ = [
    "CaptureSource",
    "KafkaSource",
    "RoundLimits",
    "RoundPlan",
    "Source",
    "SourcePosition",
    "SourceSplit",
    "SplitReader",
    "error_in",
    "raised_in_task",
]
