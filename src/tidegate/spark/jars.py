"""The Java libraries Spark needs beside its own: which versions, where they are, how to fetch them.

This is the one place for their versions. `make jars` runs this module: Maven copies the jars of a
small pom into a folder, which `session` then finds. Spark ships everything that these need in turn,
so nothing transitive is fetched; a Kafka broker (`make kafka`, tests) comes with all of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import escape

from tidegate.model import SparkError, TidegateError

VARIABLE = "TIDEGATE_JARS"
"""The environment variable that names the folder of jars."""


@dataclass(frozen=True, slots=True)
class Jar:
    """A library by its Maven coordinates; `provides` is the class that it is needed for."""

    group: str
    artifact: str
    version: str
    provides: str

    @property
    def file(self) -> str:
        """The name Maven gives the file."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        """As `spark.jars.packages` wants them."""
        return f"{self.group}:{self.artifact}:{self.version}"


KAFKA = (
    Jar(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.1.3",
        "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    ),
    # Of the connector's helper for delegation tokens, the newest that all repositories have.
    Jar(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.1.0-preview1",
        "org.apache.spark.kafka010.KafkaConfigUpdater",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-clients",
        "3.9.2",
        "org.apache.kafka.clients.consumer.KafkaConsumer",
    ),
    Jar(
        "org.apache.commons",
        "commons-pool2",
        "2.13.1",
        "org.apache.commons.pool2.impl.GenericObjectPool",
    ),
)
ICEBERG = (
    Jar(
        "org.apache.iceberg",
        "iceberg-spark-runtime-4.1_2.13",
        "1.12.0",
        "org.apache.iceberg.spark.SparkCatalog",
    ),
    # The embedded catalog is Iceberg's JDBC catalog on SQLite.
    Jar("org.xerial", "sqlite-jdbc", "3.50.3.0", "org.sqlite.JDBC"),
)
DELTA = (
    Jar("io.delta", "delta-spark_4.1_2.13", "4.4.0", "io.delta.sql.DeltaSparkSessionExtension"),
    Jar("io.delta", "delta-storage", "4.4.0", "io.delta.storage.LogStore"),
    Jar("io.delta", "delta-kernel-api", "4.4.0", "io.delta.kernel.Table"),
    Jar(
        "io.delta",
        "delta-kernel-defaults",
        "4.4.0",
        "io.delta.kernel.defaults.engine.DefaultEngine",
    ),
    Jar(
        "io.delta",
        "delta-kernel-unitycatalog",
        "4.4.0",
        "io.delta.kernel.unitycatalog.UCCatalogManagedClient",
    ),
)
LIBRARIES = {"kafka": KAFKA, "iceberg": ICEBERG, "delta": DELTA}
"""What a session can do, and the jars that each needs."""

BROKER = (Jar("org.apache.kafka", "kafka_2.13", "4.3.1", "kafka.Kafka"),)
"""A Kafka broker for tests and trials; what it depends on comes along."""

BROKER_FOLDER = "kafka"
"""Where in a folder of jars the broker's are: apart, since Spark must not see them."""


def pom(jars: Iterable[Jar], *, transitive: bool = False) -> str:
    """The text of a pom.xml that depends on these jars, and on nothing else unless `transitive`."""
    exclusion = (
        ""
        if transitive
        else "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId>"
        "</exclusion></exclusions>"
    )
    dependencies = "\n".join(
        f"    <dependency><groupId>{escape(jar.group)}</groupId>"
        f"<artifactId>{escape(jar.artifact)}</artifactId>"
        f"<version>{escape(jar.version)}</version>{exclusion}</dependency>"
        for jar in jars
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n'
        "  <modelVersion>4.0.0</modelVersion>\n"
        "  <groupId>tidegate</groupId><artifactId>jars</artifactId><version>1</version>\n"
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n"
        "</project>\n"
    )


def fetch(folder: str | Path, jars: Sequence[Jar], *, transitive: bool = False) -> None:
    """Copies the jars into the folder with Maven; does nothing where they are there already."""
    target = Path(folder).absolute()
    if all((target / jar.file).is_file() for jar in jars):
        return
    maven = shutil.which("mvn")
    if maven is None:
        raise SparkError(
            "the jars cannot be fetched: there is no `mvn`",
            f"Install Maven, or put {', '.join(jar.file for jar in jars)} into {target} yourself",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as scratch:
        project = Path(scratch, "pom.xml")
        project.write_text(pom(jars, transitive=transitive), encoding="utf-8")
        copied = Path(scratch, "jars")
        command = [maven, "-q", "-B", "-f", str(project), "dependency:copy-dependencies"]
        command.append(f"-DoutputDirectory={copied}")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            last = [line for line in done.stdout.splitlines() if "ERROR" in line][:1]
            raise SparkError(
                f"Maven could not fetch the jars: {''.join(last) or done.stderr.strip()}",
                "Check that Maven reaches a repository (`mvn -X dependency:list`), then try again",
            )
        target.mkdir(exist_ok=True)
        # Whole files only: a fetch that was cut short must not look done.
        for path in copied.iterdir():
            os.replace(path, target / path.name)


def folder() -> Path | None:
    """Where jars are kept on this machine, if anywhere."""
    named = os.environ.get(VARIABLE)
    if named:
        path = Path(named)
        if not path.is_dir():
            raise SparkError(f"{VARIABLE} names {named}, which is no folder", "Correct it")
        return path
    checkout = Path(__file__).resolve().parents[3]
    places = [Path.cwd(), *([checkout] if (checkout / "pyproject.toml").is_file() else [])]
    for place in [place / ".jars" for place in places] + [cache_folder("jars")]:
        if place.is_dir():
            return place
    return None


def cache_folder(name: str) -> Path:
    """A folder for what can be made again."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "tidegate", name)


@dataclass(frozen=True, slots=True)
class Found:
    """Where the jars of a session come from: files to give it, and coordinates to resolve."""

    files: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()


def find(libraries: Iterable[str]) -> Found:
    """The jars of these libraries: those Spark has are left out, others are files or coordinates.

    A library is taken whole from one place, so that its jars fit together.
    """
    place = folder()
    files: list[Path] = []
    packages: list[str] = []
    for library in libraries:
        jars = LIBRARIES[library]
        wanted = [jar for jar in jars if not _in_spark(jar)]
        paths = [] if place is None else [place / jar.file for jar in wanted]
        if place is not None and all(path.is_file() for path in paths):
            files += paths
        else:
            packages += [jar.coordinates for jar in wanted]
    return Found(tuple(files), tuple(packages))


def _in_spark(jar: Jar) -> bool:
    """Whether Spark's own folder of jars has the artifact, in whatever version."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            return False
        home = str(Path(spec.origin).parent)
    return any(Path(home, "jars").glob(f"{jar.artifact}-[0-9]*.jar"))


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m tidegate.spark.jars FOLDER [--broker]`."""
    parser = argparse.ArgumentParser(prog="python -m tidegate.spark.jars", description=__doc__)
    parser.add_argument("folder", nargs="?", default=str(cache_folder("jars")))
    parser.add_argument("--broker", action="store_true", help="also a Kafka broker's jars")
    options = parser.parse_args(arguments)
    place = Path(options.folder)
    try:
        fetch(place, [jar for jars in LIBRARIES.values() for jar in jars])
        if options.broker:
            fetch(place / BROKER_FOLDER, BROKER, transitive=True)
    except TidegateError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
