"""The Java libraries Spark needs beside its own: which versions, where they are, how to fetch them.

This is the one place for their versions. `make jars` runs this module: Maven copies the jars of a
small pom into a folder, which `session` then finds. Spark ships everything that these need in turn,
so nothing transitive is fetched; servers for tests come with all of their own. Object stores and
other databases as catalogs need more (`OPTIONAL`): a session takes those that are in the folder.
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
    classifier: str | None = None

    @property
    def file(self) -> str:
        """The name Maven gives the file."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{classifier}.jar"

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
# Iceberg's own bundle of the AWS SDK serves S3FileIO and s3a alike: one SDK in a session.
_AWS_SDK = Jar(
    "org.apache.iceberg",
    "iceberg-aws-bundle",
    "1.12.0",
    "software.amazon.awssdk.services.s3.S3Client",
)
_AWS_SDK_VERSION = "2.54.17"  # of what is in the bundle
S3 = (_AWS_SDK,)
S3A = (
    Jar("org.apache.hadoop", "hadoop-aws", "3.4.2", "org.apache.hadoop.fs.s3a.S3AFileSystem"),
    _AWS_SDK,
    # What s3a uses of the SDK beyond Iceberg's bundle.
    Jar(
        "software.amazon.awssdk",
        "s3-transfer-manager",
        _AWS_SDK_VERSION,
        "software.amazon.awssdk.transfer.s3.S3TransferManager",
    ),
    Jar(
        "software.amazon.awssdk",
        "apache-client",
        _AWS_SDK_VERSION,
        "software.amazon.awssdk.http.apache.ApacheHttpClient",
    ),
)
POSTGRESQL = (Jar("org.postgresql", "postgresql", "42.7.8", "org.postgresql.Driver"),)

MARIADB = (
    # What benchmarks compare a load with; no session needs it.
    Jar("org.mariadb.jdbc", "mariadb-java-client", "3.5.6", "org.mariadb.jdbc.Driver"),
)

OPTIONAL = {"s3": S3, "s3a": S3A, "postgresql": POSTGRESQL}
"""What some lakes need: Iceberg's files in S3, Delta's in S3, Iceberg's JDBC catalog."""

LIBRARIES = {"kafka": KAFKA, "iceberg": ICEBERG, "delta": DELTA, **OPTIONAL}
"""What a session can do, and the jars that each needs."""


@dataclass(frozen=True, slots=True)
class ServerJars:
    """A server for tests and trials, with the jars of its own that Spark must not see.

    `folder` is where they are within a folder of jars. What they depend on comes along.
    """

    folder: str
    main: str
    jars: tuple[Jar, ...]


BROKER = ServerJars(
    "kafka", "kafka.Kafka", (Jar("org.apache.kafka", "kafka_2.13", "4.3.1", "kafka.Kafka"),)
)

_ICEBERG_SERVER = "1.11.0"  # the newest version whose server is published
_JETTY = "12.1.5"
REST_CATALOG = ServerJars(
    "rest-catalog",
    "org.apache.iceberg.rest.RESTCatalogServer",
    (
        Jar(
            "org.apache.iceberg",
            "iceberg-open-api",
            _ICEBERG_SERVER,
            "org.apache.iceberg.rest.RESTCatalogServer",
            "test-fixtures",
        ),
        Jar(
            "org.apache.iceberg",
            "iceberg-core",
            _ICEBERG_SERVER,
            "org.apache.iceberg.rest.RESTCatalogAdapter",
            "tests",
        ),
        Jar(
            "org.apache.iceberg",
            "iceberg-core",
            _ICEBERG_SERVER,
            "org.apache.iceberg.jdbc.JdbcCatalog",
        ),
        Jar(
            "org.apache.iceberg",
            "iceberg-aws",
            _ICEBERG_SERVER,
            "org.apache.iceberg.aws.s3.S3FileIO",
        ),
        Jar(
            "org.eclipse.jetty.ee10",
            "jetty-ee10-servlet",
            _JETTY,
            "org.eclipse.jetty.ee10.servlet.ServletContextHandler",
        ),
        Jar(
            "org.eclipse.jetty.compression",
            "jetty-compression-server",
            _JETTY,
            "org.eclipse.jetty.compression.server.CompressionHandler",
        ),
        Jar(
            "org.eclipse.jetty.compression",
            "jetty-compression-gzip",
            _JETTY,
            "org.eclipse.jetty.compression.gzip.GzipCompression",
        ),
        # The server's adapter is part of Iceberg's tests.
        Jar("org.junit.jupiter", "junit-jupiter-api", "5.14.1", "org.junit.jupiter.api.Test"),
        Jar("org.assertj", "assertj-core", "3.27.6", "org.assertj.core.api.Assertions"),
        Jar("org.slf4j", "slf4j-simple", "2.0.17", "org.slf4j.simple.SimpleLogger"),
        Jar("dev.failsafe", "failsafe", "3.3.2", "dev.failsafe.Failsafe"),
    ),
)
TEST_SERVERS = (BROKER, REST_CATALOG)


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
        f"<version>{escape(jar.version)}</version>{_classifier(jar)}{exclusion}</dependency>"
        for jar in jars
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n'
        "  <modelVersion>4.0.0</modelVersion>\n"
        "  <groupId>tidegate</groupId><artifactId>jars</artifactId><version>1</version>\n"
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n"
        "</project>\n"
    )


def _classifier(jar: Jar) -> str:
    return f"<classifier>{escape(jar.classifier)}</classifier>" if jar.classifier else ""


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

    A library is taken whole from one place, so that its jars fit together. Optional libraries that
    the folder has are taken too.
    """
    place = folder()
    files: list[Path] = []
    packages: list[str] = []
    for library in dict.fromkeys([*libraries, *(OPTIONAL if place else ())]):
        wanted = [jar for jar in LIBRARIES[library] if not _in_spark(jar)]
        paths = [] if place is None else [place / jar.file for jar in wanted]
        if place is not None and all(path.is_file() for path in paths):
            files += paths
        elif library in libraries:
            packages += [jar.coordinates for jar in wanted]
    return Found(tuple(dict.fromkeys(files)), tuple(dict.fromkeys(packages)))


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
    """`python -m tidegate.spark.jars FOLDER [--s3] [--s3a] [--postgresql] [--test-servers]`."""
    parser = argparse.ArgumentParser(prog="python -m tidegate.spark.jars", description=__doc__)
    parser.add_argument("folder", nargs="?", default=str(cache_folder("jars")))
    parser.add_argument("--s3", action="store_true", help="Iceberg tables in S3 (s3://)")
    parser.add_argument("--s3a", action="store_true", help="Delta tables in S3 (s3a://)")
    parser.add_argument("--postgresql", action="store_true", help="a JDBC catalog in PostgreSQL")
    parser.add_argument(
        "--test-servers", action="store_true", help="a Kafka broker and a REST catalog, for tests"
    )
    options = parser.parse_args(arguments)
    place = Path(options.folder)
    chosen = [name for name in LIBRARIES if name not in OPTIONAL or getattr(options, name)]
    try:
        fetch(place, list(dict.fromkeys(jar for name in chosen for jar in LIBRARIES[name])))
        for server in TEST_SERVERS if options.test_servers else ():
            fetch(place / server.folder, server.jars, transitive=True)
    except TidegateError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
