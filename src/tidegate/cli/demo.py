"""`tidegate demo`: a small capture of each protocol comes with the package; they are shown."""

from __future__ import annotations

from importlib.resources import as_file, files

import click

from tidegate.cli.inspect import inspect

CAPTURES = (
    ("open-protocol", "open-protocol.jsonl"),
    ("canal-json", "canal-json.jsonl"),
    ("simple, as JSON", "simple-json.jsonl"),
    ("simple, as Avro", "simple-avro.jsonl"),
    ("craft", "craft.jsonl"),
    ("cdc", "cdc.jsonl"),
)


def demo(output: str) -> None:
    """Shows the shipped captures, one protocol after the other."""
    folder = files("tidegate.cli") / "captures"
    for title, name in CAPTURES:
        if output == "text":
            click.secho(f"\n{title}: tidegate inspect {name}", bold=True)
        with as_file(folder / name) as capture:
            inspect(
                str(capture),
                output=output,
                limit=None,
                tables=(),
                shapes=False,
                protocol=None,
                encoding=None,
                compression=None,
                claim_check=None,
            )
