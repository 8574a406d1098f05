"""What is wrong with a catalog, a store or a jar, as a sentence with the next step.

Java and Arrow report these in their own words, deep in a chain of causes. The words are matched
here, in one table; what no row of it matches is told as it is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pyspark.sql import SparkSession

from tidegate.lake.apply.failures import causes
from tidegate.lake.formats.base import LakePlace
from tidegate.model import LakeError, TidegateError


class _Problem(NamedTuple):
    """A problem by the words that show it; `what` follows the name of the catalog or store."""

    words: re.Pattern[str]
    what: str
    step: str


_S3_SETTINGS = (
    "spark.sql.catalog.{catalog}.s3.* for an Iceberg catalog, spark.hadoop.fs.s3a.* for Delta"
)
_OF_STORES = (
    _Problem(
        re.compile(r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist|Bucket \S+ not found"),
        "the bucket does not exist",
        "Create it, or correct the warehouse of the catalog (for Delta: --lake)",
    ),
    _Problem(
        re.compile(
            r"InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch"
            r"|SIGNATURE_DOES_NOT_MATCH|ACCESS_DENIED|AccessDenied|InvalidToken|ExpiredToken"
            r"|InvalidClientTokenId|S3Exception[^\n]*Status Code: 40[13]|HTTP response code 40[13]"
            r"|Unable to load credentials|NoAuthWithAWSException"
        ),
        "the object store refuses the credentials",
        f"Correct the key and the secret ({_S3_SETTINGS})",
    ),
    _Problem(
        re.compile(
            r"SdkClientException: Unable to execute HTTP request|NETWORK_CONNECTION|curlCode"
            r"|Couldn't connect to server|client error \(Connect\)"
            r"|ApiCall(?:Attempt)?TimeoutException"
        ),
        "the object store does not answer",
        f"Correct the endpoint ({_S3_SETTINGS}), or see to the network",
    ),
)
_OF_CATALOGS = (
    _Problem(
        re.compile(r"NotAuthorizedException|ForbiddenException"),
        "it refuses the token or the credential",
        "Correct spark.sql.catalog.{catalog}.token, or .credential",
    ),
    _Problem(
        re.compile(
            r"Error occurred while processing (?:GET|POST|HEAD) request"
            r"|Connect to \S+ (?:\[[^]]*\] )?(?:failed|timed out)|HttpHostConnectException"
            r"|ConnectTimeoutException|UnknownHostException|NoRouteToHostException"
            r"|PSQLException: Connection to \S+ refused"
        ),
        "it does not answer",
        "Correct spark.sql.catalog.{catalog}.uri, or see to the network",
    ),
)
_NO_CLASS = re.compile(
    r"(?:ClassNotFoundException|NoClassDefFoundError)(?:: Class)?:? ([\w./$]+)"
    r"|No FileSystem for scheme \"?(\w+)|No suitable driver found for (jdbc:\w+)"
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m\s*↳?|↳")
"""How delta-rs writes a chain of causes."""
_JARS = {
    "org/apache/hadoop/fs/s3a": "--s3a",
    "s3a": "--s3a",
    "software/amazon/awssdk": "--s3",
    "org/postgresql": "--postgresql",
    "jdbc:postgresql": "--postgresql",
}
"""The option of `tidegate.spark.jars` that fetches a class."""


def store_problem(error: BaseException) -> str | None:
    """What is wrong with an object store, in short; None where the error is of something else."""
    problem = _match(_OF_STORES, _text(error))
    return None if problem is None else problem.what


def diagnosed(error: BaseException, place: LakePlace) -> TidegateError | None:
    """What is wrong with the catalog or the store of a lake; None where it is something else."""
    text = _text(error)
    lake = f"The lake {place.folder!r} cannot be used"
    missing = _NO_CLASS.search(text)
    if missing is not None:
        return _no_jar(lake, next(filter(None, missing.groups())))
    for problems, whose in ((_OF_STORES, ""), (_OF_CATALOGS, f"the catalog {place.catalog!r}: ")):
        problem = _match(problems, text)
        if problem is not None and (place.catalog is not None or problems is _OF_STORES):
            step = problem.step.format(catalog=place.catalog or "NAME")
            return LakeError(f"{lake}: {whose}{problem.what}{_detail(text, problem)}", step)
    return None


def first_cause(error: BaseException) -> str:
    """What went wrong first: the last line of a Python worker's traceback, or of Java's causes."""
    text = causes(error)[-1].strip()
    lines = [line.strip() for line in text.splitlines()] or [type(error).__name__]
    java = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        python = [line for line in lines if re.match(r"[\w.]+(?:Error|Exception)\b", line)]
        return (python or lines)[-1].rstrip(".")
    first = lines[1].lstrip(": ") if len(lines) > 1 and lines[1].startswith(": ") else lines[0]
    return (java[-1] if java else first).rstrip(".")


def check_catalog(spark: SparkSession, place: LakePlace) -> None:
    """Raises LakeError where Spark has no settings for the catalog of a lake."""
    if place.catalog is None:
        return
    name = f"spark.sql.catalog.{place.catalog}"
    if spark.conf.get(name, None) is not None:
        return
    known = sorted(
        {
            setting.split(".")[3]
            for setting in spark.conf.getAll
            if setting.startswith("spark.sql.catalog.") and setting.count(".") == 3
        }
        - {"spark_catalog"}
    )
    others = f"; it has {', '.join(known)}" if known else ""
    raise LakeError(
        f"Spark has no catalog {place.catalog!r}{others}",
        f"Correct --catalog, or give `--spark-conf {name}=org.apache.iceberg.spark.SparkCatalog` "
        f"with {name}.type, {name}.uri and what else it needs",
    )


def _no_jar(lake: str, name: str) -> LakeError:
    path = name.replace(".", "/")
    option = next((option for start, option in _JARS.items() if path.startswith(start)), None)
    step = (
        "Add the jar that has it (spark.jars)"
        if option is None
        else f"Fetch it with `python -m tidegate.spark.jars DIR {option}`, and set TIDEGATE_JARS "
        "to that folder (with spark-submit: add it to --jars)"
    )
    return LakeError(f"{lake}: Spark lacks the jar that has {name}", step)


def _text(error: BaseException) -> str:
    return _COLOURS.sub("", "\n".join(causes(error)))


def _match(problems: tuple[_Problem, ...], text: str) -> _Problem | None:
    return next((problem for problem in problems if problem.words.search(text)), None)


def _detail(text: str, problem: _Problem) -> str:
    """The innermost line that shows a problem, as the library wrote it."""
    *_, line = (line for line in text.splitlines() if problem.words.search(line))
    line = re.sub(r"^(?:Caused by: |: )?(?:(?:[\w$]+\.)+[\w$]+: )?", "", line.strip())
    line = re.sub(r".*<Message>(.*?)</Message>.*", r"\1", line)
    line = re.sub(r",? ?(?:\(Service: S3, |Request ID: |\(SDK Attempt).*", "", line)
    return f" ({line[:200].rstrip('. ')})"
