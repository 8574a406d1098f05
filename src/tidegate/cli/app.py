"""The commands and their options.

Exit codes: 0 fine, 1 something needs a look (bad messages, stopped tables, differences), 2 usage.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, NoReturn

import click

from tidegate import __version__
from tidegate.cli.words import say, say_json
from tidegate.model import SparkError, TidegateError
from tidegate.wire.kernel.compression import COMPRESSIONS
from tidegate.wire.protocols import PROTOCOLS

BAD_MESSAGES = ATTENTION = 1
USAGE = 2


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and exits."""
    given = sys.argv[1:] if arguments is None else arguments
    # What libraries log (Py4J: every Ctrl-C, with its traceback) is not what a command says.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        code = commands.main(given, prog_name="tidegate", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away, as `head` does
        code = 0
    except (click.ClickException, TidegateError, OSError) as error:
        _tell(error, in_json=_wants_json(given))
        code = USAGE
    sys.exit(code or 0)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether programs read our output, also where the arguments are wrong otherwise."""
    return "--output=json" in arguments or ("--output", "json") in pairwise(arguments)


def _tell(error: Exception, *, in_json: bool) -> None:
    """Says on standard error what is wrong."""
    if isinstance(error, ConnectionError):
        words = "Spark's Java process has ended. Run the command again."
    elif isinstance(error, OSError):
        # Arrow's own have everything in their text.
        told = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        words = f"{told.rstrip('.')}. Check the path, its permissions and the room on the disk."
    else:
        words = error.format_message() if isinstance(error, click.ClickException) else str(error)
    log = _spark_log() if _is_of_spark(error) else None
    if in_json:
        document = {"event": "error", "kind": type(error).__name__, "error": words}
        say_json(document | ({"sparkLog": log} if log else {}), err=True)
        return
    if isinstance(error, click.ClickException):
        error.show()
    else:
        say(f"tidegate: {words}", err=True)
    if log and log not in words:
        say(f"Spark's log is {log}", err=True)


def _is_of_spark(error: BaseException | None) -> bool:
    """Whether Spark has failed, itself or as the cause of an error."""
    while error is not None:
        library = type(error).__module__.partition(".")[0]
        if library in ("pyspark", "py4j") or isinstance(error, ConnectionError | SparkError):
            return True
        error = error.__cause__
    return False


def _spark_log() -> str | None:
    """The log of the Spark that was started here, if there was one and it has anything to say."""
    sessions = sys.modules.get("tidegate.spark.sessions")
    log = None if sessions is None else sessions.kept_log()
    return None if log is None else str(log)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tidegate")
def commands() -> None:
    """Mirrors TiDB into lakehouse tables from what TiCDC sends; shows, makes and converts that."""


def _with_options(
    command: Callable[..., Any], options: Sequence[Callable[..., Any]]
) -> Callable[..., Any]:
    """The command with these options, which its help shows in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def _settings_option(what: str, module: str) -> Callable[..., Any]:
    """`--option NAME=VALUE`; `--option help` lists what the module has, whatever else is given."""

    def listed(
        context: click.Context, _: click.Parameter, given: tuple[str, ...]
    ) -> tuple[str, ...]:
        if "help" in given:
            for line in import_module(module).option_lines():
                say(line)
            context.exit()
        return given

    return click.option(
        "--option",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        is_eager=True,
        callback=listed,
        help=f"{what}; `--option help` lists them.",
    )


class _Storage(click.Path):
    """A folder that is there, or the URI of storage elsewhere."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) else super().convert(value, param, ctx)


def _source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What says how the messages of SOURCE are to be read."""
    options = [
        click.option(
            "--protocol",
            type=click.Choice(PROTOCOLS),
            help="The protocol of the messages; guessed when not given.",
        ),
        click.option(
            "--encoding",
            type=click.Choice(["json", "avro", "document", "operations"]),
            help="Simple: JSON or Avro; cdc: which profile. Told by the bytes when not given.",
        ),
        click.option(
            "--compression",
            type=click.Choice(COMPRESSIONS),
            help="How values are compressed; guessed together with the protocol.",
        ),
        click.option(
            "--claim-check",
            "claim_check",
            type=_Storage(exists=True, file_okay=False),
            help="The folder, or URI (s3://…), that holds the claim-check objects.",
        ),
    ]
    return _with_options(command, options)


def _output_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Text for eyes, or JSON lines for programs.",
    )(command)


def _changefeed_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--changefeed",
        type=click.Path(exists=True, dir_okay=False),
        help="The TOML file of the changefeed; the sink URI wins over it.",
    )(command)


_WORKLOADS = click.Choice(["bank", "orders", "sysbench"])


def _workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What says which changes a workload makes."""
    options = [
        click.option(
            "--rows",
            type=click.IntRange(min=0),
            default=10_000,
            show_default=True,
            help="How many row changes the workload makes; DDL and watermarks come on top.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Which changes: the same seed gives the same.",
        ),
        _settings_option("A setting of the workload", "tidegate.cli.generate"),
    ]
    return _with_options(command, options)


@commands.command()
@click.argument("source")
@_source_options
@_output_option
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of events to show.")
@click.option("--table", "tables", multiple=True, help="Only this DATABASE.TABLE; may be repeated.")
@click.option("--shapes", is_flag=True, help="Show also the column list of each shape of rows.")
@click.option(
    "--from-offset",
    type=int,
    help="Kafka: begin at this offset of each partition; -10 is the tenth from the end.",
)
@click.option(
    "--from-time",
    metavar="TIME",
    help="Kafka: begin with what came since 2026-01-31T12:00:00 (UTC), or 90s, 15m, 2h, 1d ago.",
)
@click.option("--follow", is_flag=True, help="Kafka: go on with what comes, until Ctrl-C.")
def inspect(source: str, **options: Any) -> int:
    """Shows every event of SOURCE.

    SOURCE is a capture (JSON lines, also with gzip, or Parquet; a file, a folder of them, or - for
    standard input) or a topic: kafka://host:port/topic, with TiCDC's parameters for security.
    """
    from tidegate.cli.inspect import inspect

    return BAD_MESSAGES if inspect(source, **options) else 0


@commands.command()
@click.argument("source")
@click.argument("destination", metavar="DEST", required=False)
@click.option("--to", "target", type=click.Choice(PROTOCOLS), help="The new protocol.")
@_settings_option("A setting of the new protocol, by TiCDC's name", "tidegate.cli.convert")
@click.option(
    "--sink-uri",
    metavar="URI",
    help="In place of --to: the sink URI of a changefeed, whose rules say what goes where.",
)
@_changefeed_option
@_source_options
@_output_option
def convert(source: str, destination: str | None, **options: Any) -> int:
    """Writes the messages of SOURCE to DEST in another protocol.

    Says first what the other protocol cannot carry. With --to every message stays in its partition;
    with --sink-uri the changes are sent anew, as a changefeed with these settings would. DEST may
    be left out when the URI is file:///FOLDER: the capture is then FOLDER/messages.parquet.
    """
    from tidegate.cli.convert import convert

    return BAD_MESSAGES if convert(source, destination, **options) else 0


_master_option = click.option(
    "--master",
    help="Spark's master; by default that of spark-submit or of Spark's configuration, else all "
    "cores of this machine.",
)


def _lake_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What says where a lake is, and how Spark is started for it."""
    options = [
        click.option(
            "--lake", metavar="DIR", help="The lake's folder (or URI); its name in a catalog."
        ),
        click.option(
            "--config",
            type=click.Path(exists=True, dir_okay=False),
            help="A tidegate.toml with these settings; options win over it.",
        ),
        click.option("--catalog", help="A Spark catalog for the tables, in place of the lake's."),
        click.option(
            "--prefix",
            metavar="TEXT",
            help="Goes before the name of every database in the lake, so that several lakes share "
            "a catalog.",
        ),
        _master_option,
        click.option(
            "--spark-conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark."
        ),
    ]
    return _with_options(command, options)


def _load_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What existing rows are loaded from."""
    options = [
        click.option(
            "--load",
            "load_source",
            envvar="TIDEGATE_LOAD",
            metavar="URI",
            help="Where existing rows are loaded from: the feed's database, "
            "mysql://user@host:4000/ (the password also from the variable "
            "TIDEGATE_LOAD_PASSWORD), or a dump of Dumpling, a folder or s3://…",
        ),
        click.option(
            "--load-snapshot",
            "load_snapshot",
            type=click.IntRange(min=1),
            metavar="TSO",
            help="The instant to load; by default the present, or that of the dump.",
        ),
    ]
    return _with_options(command, options)


@commands.command()
@click.argument("source", required=False)
@_lake_options
@_load_options
@click.option(
    "--load-mode",
    type=click.Choice(["initial", "never", "only"]),
    help="Load, then follow the feed (initial, the default with --load); not at all (never); or "
    "make a copy of one instant (only).",
)
@click.option(
    "--cdc",
    "load_cdc",
    metavar="URL",
    help="TiCDC's address, http://host:8300: it says where the changefeed starts, which must not "
    "be after the load.",
)
@click.option(
    "--changefeed-id",
    "load_changefeed_id",
    metavar="ID",
    help="Which of TiCDC's changefeeds the feed is of; by default the one that writes to its "
    "topic.",
)
@click.option(
    "--start-ts",
    "load_start_ts",
    type=click.IntRange(min=1),
    metavar="TSO",
    help="Where the changefeed starts, in place of --cdc: the start_ts that `cdc cli changefeed "
    "query` shows.",
)
@click.option("--once", is_flag=True, help="End when all that the feed has now is in the tables.")
@_changefeed_option
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["iceberg", "delta"]),
    help="The tables' format; iceberg unless the lake has another.",
)
@click.option(
    "--table-filter",
    "include",
    multiple=True,
    metavar="RULE",
    help="Only tables by TiCDC's rules: 'shop.*', '!shop.tmp_*'; may be repeated.",
)
@click.option(
    "--rename",
    "rename_texts",
    multiple=True,
    metavar="SOURCE=DEST",
    help="Another name in the lake: shop.orders=sales.orders, or shop.*=sales.*.",
)
@click.option(
    "--upstream",
    envvar="TIDEGATE_UPSTREAM",
    metavar="URI",
    help="The feed's database, mysql://user:password@host:port/: it completes rows of which a "
    "message has only the key; also from the variable TIDEGATE_UPSTREAM.",
)
@click.option("--time-zone", help="The time zone of the feed's TIMESTAMP values; by default UTC.")
@click.option(
    "--bad-messages",
    type=click.Choice(["stop", "continue"]),
    help="At a message that cannot be read: stop (the default), or go on. It is kept either way.",
)
@click.option(
    "--schema-changes",
    type=click.Choice(["evolve", "try_evolve", "lenient", "ignore", "exception"]),
    help="Schema changes of mirrored tables: all exactly (evolve, the default: what cannot be "
    "mirrored stops its table), as far as can be (try_evolve), without losing rows or columns "
    "(lenient), not at all (ignore), or end with an error (exception).",
)
@click.option(
    "--max-step-seconds",
    type=click.FloatRange(min=0.001),
    help="Upstream time between two snapshots at most; by default as much as there is.",
)
@click.option(
    "--max-messages", type=click.IntRange(min=1), help="Messages that are read at a time at most."
)
@_source_options
@_output_option
def mirror(source: str | None, **options: Any) -> int:
    """Mirrors the feed SOURCE into the tables of a lake.

    SOURCE is TiCDC's sink URI (kafka://host:port/topic?protocol=...), or a capture: a file or
    folder. Without --once it follows the feed until Ctrl-C, and a new start goes on from there.
    With --load it begins with the rows that the database has, all of one instant.
    """
    from tidegate.cli.mirror import mirror

    return 0 if mirror(source, **options) else ATTENTION


@commands.command()
@click.argument("tables", nargs=-1, required=True, metavar="DATABASE.TABLE...")
@_lake_options
@_load_options
@_output_option
def reload(tables: tuple[str, ...], **options: Any) -> int:
    """Loads tables again, as of the lake's own instant, in the place of what the lake has.

    A table that is stopped, incomplete or diverged is mirrored again from then on. The mirror must
    not run meanwhile.
    """
    from tidegate.cli.reload import reload

    reload(tables, **options)
    return 0


@commands.command()
@_lake_options
@click.option("--rows", is_flag=True, help="Count the rows of every table.")
@_output_option
def status(**options: Any) -> int:
    """Shows how a lake stands: instants, lag, tables, what waits, what is quarantined."""
    from tidegate.cli.status import status

    return 0 if status(**options) else ATTENTION


@commands.command()
@click.argument("name", metavar="DATABASE.TABLE", required=False)
@_lake_options
@click.option("--at", metavar="TSO|TIME", help="As of an upstream instant; by default the last.")
@click.option("--limit", type=click.IntRange(min=1), help="Only so many rows.")
@click.option(
    "--output",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="Text for eyes, an object a line, or CSV.",
)
def read(name: str | None, **options: Any) -> int:
    """Shows the rows of a mirrored table, by key; without a name, which tables there are."""
    from tidegate.cli.read import read

    read(name, **options)
    return 0


@commands.command()
@click.argument("name", metavar="WORKLOAD", type=_WORKLOADS)
@click.argument("destination", metavar="DEST")
@click.option(
    "--sink-uri",
    help="TiCDC's sink URI, of which the settings count; by default Canal-JSON with the TiDB "
    "extension, and 3 partitions.",
)
@_changefeed_option
@_workload_options
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Kafka: the most messages a second; as fast as possible when not given.",
)
@_output_option
def generate(name: str, destination: str, **options: Any) -> int:
    """Writes the changes of WORKLOAD, as a changefeed sends them, to DEST.

    WORKLOAD is bank (transfers; the sum never changes), orders (foreign keys, all column types, DDL
    on the way) or sysbench (wide rows, hot keys). DEST is a capture (.parquet, the fastest, .jsonl
    or .jsonl.gz) or the sink URI of a topic: kafka://host:port/topic?protocol=…. The same seed
    gives the same bytes.
    """
    from tidegate.cli.generate import generate

    generate(name, destination, **options)
    return 0


@commands.command()
@click.argument("source")
@click.argument("destination", metavar="DEST")
@_changefeed_option
@click.option(
    "--to-changefeed",
    type=click.Path(exists=True, dir_okay=False),
    help="The changefeed file of DEST: its topics, partitions and filters.",
)
@click.option("--once", is_flag=True, help="End when all that is there now has been sent.")
@click.option(
    "--checkpoint",
    type=click.Path(file_okay=False),
    help="The folder that remembers where the bridge stands; by default one of its own for these "
    "two ends.",
)
@click.option(
    "--starting",
    default="earliest",
    show_default=True,
    help='Where to begin the first time: earliest, latest or {"topic": {"0": 12}}.',
)
@click.option(
    "--max-per-trigger",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="The most messages of a batch.",
)
@click.option(
    "--watermarks/--no-watermarks",
    default=None,
    help="Whether SOURCE sends watermarks, where its URI does not tell.",
)
@_master_option
@_output_option
def bridge(source: str, destination: str, **options: Any) -> int:
    """Sends the feed SOURCE on to DEST, in another protocol or by other rules, with Spark.

    SOURCE is a sink URI (kafka://host:port/topic?protocol=…) or a capture, DEST a sink URI. It
    runs until Ctrl-C, and when started again it goes on where it was.
    """
    from tidegate.cli.bridge import bridge

    return BAD_MESSAGES if bridge(source, destination, **options) else 0


@commands.command()
@_lake_options
@click.option(
    "--workload", type=_WORKLOADS, help="Compare with what this workload knows to be true."
)
@_workload_options
@click.option("--capture", metavar="FILE", help="Compare with what this capture comes to.")
@click.option(
    "--mysql",
    metavar="URI",
    help="Compare with a database: mysql://user:password@host:port/; TiDB as of the instant.",
)
@click.option("--at", metavar="TSO|TIME", help="As of an upstream instant; by default the last.")
@click.option(
    "--differences",
    "most",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How many differing rows are named a table.",
)
@_source_options
@_output_option
def verify(**options: Any) -> int:
    """Compares the tables of a lake with what they should be, by count and checksum.

    Name one of --workload, --capture and --mysql. Rows that differ are named by their keys.
    """
    from tidegate.cli.verify import verify

    return 0 if verify(**options) else ATTENTION


@commands.group()
def quarantine() -> None:
    """The messages of a lake's feed that could not be read."""


@quarantine.command("list")
@_lake_options
@click.option("--limit", type=click.IntRange(min=1), help="Only so many.")
@_output_option
def quarantine_list(**options: Any) -> int:
    """Lists them with position and reason."""
    from tidegate.cli.quarantine import listed

    return 0 if listed(**options) else ATTENTION


@quarantine.command("show")
@click.argument("place", metavar="[TOPIC:]PARTITION:OFFSET")
@_lake_options
@_output_option
def quarantine_show(place: str, **options: Any) -> int:
    """Shows one of them with its bytes."""
    from tidegate.cli.quarantine import shown

    shown(place, **options)
    return 0


@quarantine.command("retry")
@click.argument("places", metavar="[[TOPIC:]PARTITION:OFFSET]...", nargs=-1)
@_lake_options
@_source_options
@_output_option
def quarantine_retry(places: tuple[str, ...], **options: Any) -> int:
    """Tries to read them again, all or those named, and takes in what can be read now.

    Give what was missing: --claim-check, --compression, --encoding. A mirror that had stopped then
    goes on with nothing lost.
    """
    from tidegate.cli.quarantine import retried

    return 0 if retried(places, **options) else ATTENTION


@commands.command()
@_lake_options
@click.option(
    "--keep",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="How long snapshots and changes are kept; by default 7.",
)
@_output_option
def maintain(**options: Any) -> int:
    """Compacts small files and removes old snapshots and changes. The mirror must not run."""
    from tidegate.cli.maintain import maintain

    maintain(**options)
    return 0


@commands.command()
@click.option("--wire", is_flag=True, help="Only decode a small shipped capture of each protocol.")
@click.option(
    "--folder",
    default="tidegate-demo",
    show_default=True,
    help="Where captures and lakes are put; what an earlier demo left there goes.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=100),
    default=20_000,
    show_default=True,
    help="How many row changes the bank makes; the shop makes half as many.",
)
@_output_option
def demo(wire: bool, folder: str, rows: int, output: str) -> int:
    """Makes two upstream databases, mirrors them into lakes, and checks every snapshot."""
    from tidegate.cli.demo import show_protocols

    if wire:
        show_protocols(output)
        return 0
    from tidegate.cli.demo import demo

    return 0 if demo(folder, rows, output) else ATTENTION
