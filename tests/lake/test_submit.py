"""The commands of docs/mirror.md for a cluster, word for word: from Kafka into a REST catalog and S3.

Two workers run the executors, one of which does not see the folders of the driver where the machine
allows that. What belongs to the cluster and not to the command (its master, the store and its keys)
is in Spark's own `spark-defaults.conf`. `--once` is added, so that a run ends.
"""

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.lake.test_sources import WorkloadFeed
from tests.support.cluster import cluster as spark_cluster
from tests.support.cluster import may_hide
from tests.support.corpus import Message
from tests.support.rest_catalog import rest_catalog
from tidegate.lake import Lake
from tidegate.lake.formats.base import LakePlace
from tidegate.lake.job.mirror import Mirror
from tidegate.spark import jars

pytestmark = pytest.mark.skipif(
    not os.environ.get("TIDEGATE_ALL"), reason="a cluster takes too long for every day"
)
CHECKOUT = Path(__file__).resolve().parents[2]
SECTION = "## On a cluster"
ROWS = 2000
RUN_SECONDS = 400
WORKERS = ("one", "two")
CATALOG = "spark.sql.catalog.prod"


def section():
    """What docs/mirror.md says of clusters."""
    text = (CHECKOUT / "docs" / "mirror.md").read_text(encoding="utf-8")
    return text.partition(f"\n{SECTION}\n")[2].partition("\n## ")[0]


def documented(program, option=""):
    """The one command of the document that runs a program with an option."""
    blocks = re.findall(r"```console\n(.*?)```", section(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", "").splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith(f"$ {program} ")]
    commands = [each for each in commands if option in each]
    assert len(commands) == 1, f"{SECTION}: {len(commands)} commands `{program} … {option}`"
    return commands[0]


def documented_script():
    """The text of `run.py`."""
    return re.search(r"`run\.py` is `([^`]+)`", section())[1]


def filled(command, **values):
    """A command with values for what the document leaves open; everything must be there."""
    for placeholder, value in values.items():
        assert PLACEHOLDERS[placeholder] in command, placeholder
        command = command.replace(PLACEHOLDERS[placeholder], value)
    assert "…" not in command, command
    return command


PLACEHOLDERS = {
    "catalog": "https://…",
    "source": '"kafka://…"',
    "lake": "s3://bucket/lake",
    "master": "spark://master:7077",
    "jars": "/opt/tidegate/jars",
    "python": "/opt/tidegate/bin/python",
}


@pytest.fixture(scope="module")
def catalog(object_store):
    """A catalog server of its own: the documented commands give a lake no prefix."""
    object_store.create_bucket("submitted")
    with rest_catalog(object_store, "s3://submitted/tables") as running:
        yield running


@pytest.fixture(scope="module")
def driver_folder(tmp_path_factory):
    """Where the driver runs: no executor needs anything of it."""
    return tmp_path_factory.mktemp("driver")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, driver_folder):
    hidden = driver_folder if may_hide(driver_folder) else None
    with ExitStack() as stack:
        running = stack.enter_context(spark_cluster(tmp_path_factory.mktemp("cluster")))
        stack.enter_context(running.worker(WORKERS[0], memory="2g"))
        stack.enter_context(running.worker(WORKERS[1], memory="2g", hidden=hidden))
        yield running


@pytest.fixture(scope="module")
def feed(driver_folder):
    return WorkloadFeed("bank", ROWS, driver_folder / "feed.parquet")


def send(feed, broker, topic):
    """Sends a feed to a topic; the sink URI."""
    broker.create(topic, partitions=3)
    rows = pq.read_table(feed.path, columns=["partition", "key", "value"]).to_pylist()
    broker.send({topic: [Message(**row, note="") for row in rows]})
    return broker.uri(topic, "open-protocol", partition_num="3")


class Submitting:
    """A shell on the machine of the driver, which Spark's own configuration ties to a cluster."""

    def __init__(self, folder, cluster, catalog):
        self.folder, self.cluster = folder, cluster
        configuration = folder / "conf"
        configuration.mkdir(exist_ok=True)
        settings = {
            **cluster.whole(len(WORKERS)),
            "spark.driver.memory": "1g",
            "spark.executor.memory": "1g",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.executorEnv.PYTHONPATH": str(CHECKOUT / "src"),
            "spark.sql.shuffle.partitions": "2",
            **{f"{CATALOG}.{name}": value for name, value in catalog.spark().items()},
        }
        # What the documented commands give themselves.
        for name in ("type", "uri"):
            settings.pop(f"{CATALOG}.{name}")
        text = "".join(f"{name} {value}\n" for name, value in settings.items())
        (configuration / "spark-defaults.conf").write_text(text)
        (folder / "run.py").write_text(documented_script() + "\n")

    def run(self, command):
        """Runs a command until its end, which must be a good one; what it printed."""
        programs = Path(sys.executable).parent
        environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(CHECKOUT / "src"),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        environment.pop(jars.VARIABLE, None)
        settings = filled(documented("export"), python=sys.executable, jars=str(jars.folder()))
        done = subprocess.run(
            ["bash", "-c", f"{settings}; {command} --once"],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def executors(self):
        """How many executors each worker has run."""
        return [len(list((self.cluster.folder / name).glob("app-*/*"))) for name in WORKERS]


@pytest.fixture
def shell(driver_folder, cluster, catalog):
    return Submitting(driver_folder, cluster, catalog)


def assert_mirrored(spark, catalog, folder, feed, *, prefix="", snapshots=1):
    """A session that knows the catalog reads every snapshot as the source has it."""
    spark.conf.set(CATALOG, "org.apache.iceberg.spark.SparkCatalog")
    for name, value in catalog.spark().items():
        spark.conf.set(f"{CATALOG}.{name}", value)
    lake = Lake(spark, LakePlace(folder, "prod", prefix=prefix))
    feed.assert_mirrored(lake, Mirror(lake), snapshots)


def test_the_documented_spark_submit_runs_on_the_cluster(spark, shell, kafka, catalog, feed):
    before = shell.executors()
    folder = "s3://submitted/lake"
    shell.run(
        filled(
            documented("spark-submit"),
            master=shell.cluster.master,
            jars=str(jars.folder()),
            catalog=catalog.uri,
            source=f'"{send(feed, kafka, "submitted")}"',
            lake=folder,
        )
    )
    assert all(now > then for now, then in zip(shell.executors(), before, strict=True))
    assert_mirrored(spark, catalog, folder, feed)


def test_the_documented_master_runs_on_the_cluster(spark, shell, kafka, object_store, feed):
    before = shell.executors()
    object_store.create_bucket("mastered")
    folder = "s3://mastered/lake"
    with rest_catalog(object_store, "s3://mastered/tables") as catalog:
        shell.run(
            filled(
                documented("tidegate mirror", "--master"),
                catalog=catalog.uri,
                source=f'"{send(feed, kafka, "mastered")}"',
                lake=folder,
                master=shell.cluster.master,
            )
        )
        assert all(now > then for now, then in zip(shell.executors(), before, strict=True))
        assert_mirrored(spark, catalog, folder, feed)
