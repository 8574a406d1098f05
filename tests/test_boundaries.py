"""Imports point one way: model, wire, sql, changefeed, spark, upstream, lake, verify, cli.

The source is read rather than run, so that an import inside a function counts too; what an import
really loads is then looked at in a fresh interpreter.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "tidegate"

# Each layer: the layers it builds on (theirs come along), and the libraries it brings in.
LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "model": (set(), set()),
    "wire": ({"model"}, {"pyarrow", "fastavro", "cramjam"}),
    "sql": ({"model", "wire"}, {"sqlglot"}),
    "changefeed": ({"sql"}, set()),
    "spark": ({"changefeed"}, {"pyspark", "py4j"}),
    "source": ({"changefeed"}, {"confluent_kafka", "pyiceberg"}),
    "upstream": ({"spark"}, {"pymysql"}),
    "lake": ({"spark", "source", "upstream"}, {"pyiceberg", "deltalake"}),
    "verify": ({"lake"}, set()),
    "workload": ({"changefeed"}, {"numpy"}),
    "cli": ({"verify", "workload"}, {"click", "rich"}),
}

# What Cython itself provides for cimport.
CYTHON = {"cython", "cpython", "libc", "libcpp", "posix"}

CYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<module>[.\w]+)[ \t]+c?import[ \t]+(?P<names>\([^)]*\)|[^\n#]*)"
    r"|c?import[ \t]+(?P<modules>[^\n#]+))",
    re.MULTILINE,
)


def allowed(layer: str) -> tuple[set[str], set[str]]:
    """The layers and libraries that `layer` may import, through all it builds on."""
    below, libraries = LAYERS[layer]
    layers, libraries = {layer} | below, set(libraries)
    for name in below:
        more_layers, more_libraries = allowed(name)
        layers |= more_layers
        libraries |= more_libraries
    return layers, libraries


def absolute(package: list[str], level: int, module: str) -> list[str]:
    """The dotted parts of a module named with `level` leading dots from inside `package`."""
    base = package[: len(package) - level + 1] if level else []
    return base + [part for part in module.split(".") if part]


def python_imports(text: str, package: list[str]) -> Iterator[list[str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")
        elif isinstance(node, ast.ImportFrom):
            base = absolute(package, node.level, node.module or "")
            for alias in node.names:
                yield [*base, alias.name]


def cython_imports(text: str, package: list[str]) -> Iterator[list[str]]:
    text = re.sub(r'"""[\s\S]*?"""', "", text).replace("\\\n", " ")
    for match in CYTHON_IMPORT.finditer(text):
        listed = match["names"] or match["modules"]
        names = [name.split()[0] for name in listed.strip("()").split(",") if name.strip()]
        if match["module"] is None:
            yield from (name.split(".") for name in names)
            continue
        module = match["module"].lstrip(".")
        base = absolute(package, len(match["module"]) - len(module), module)
        yield from ([*base, name] for name in names)


def violations(source: Path) -> list[str]:
    """Every import under `source` (the tidegate package) that its layer does not allow."""
    found = []
    for path in sorted(source.rglob("*")):
        if path.suffix not in {".py", ".pyi", ".pyx", ".pxd"}:
            continue
        where = path.relative_to(source)
        layer = where.parts[0].partition(".")[0]
        if layer == "__init__":
            continue  # the public surface names every layer; what it loads is tested below
        if layer not in LAYERS:
            found.append(f"{where}: {layer} is not a layer")
            continue
        layers, libraries = allowed(layer)
        package = ["tidegate", *where.parts[:-1]]
        is_python = path.suffix in {".py", ".pyi"}
        read = python_imports if is_python else cython_imports
        for parts in read(path.read_text(encoding="utf-8"), package):
            top = parts[0]
            if top == "tidegate":
                # `from tidegate import x` names the surface unless x is a layer.
                fine = len(parts) > 1 and (parts[1] in layers or parts[1] == "__version__")
            else:
                fine = top in sys.stdlib_module_names or top in libraries
                fine = fine or (not is_python and top in CYTHON)
            if not fine:
                found.append(f"{where}: {layer} may not import {'.'.join(parts)}")
    return found


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `statement`, and had not before."""
    script = (
        "import sys; before = set(sys.modules); "
        f"{statement}; print('\\n'.join(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_every_layer_imports_only_what_stands_before_it() -> None:
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("where", "text", "expected"),
    [
        ("model/a.py", "import json\nfrom tidegate.model import b\nfrom . import c", []),
        ("model/a.py", "import pyarrow as pa", ["model may not import pyarrow"]),
        ("model/a.py", "from ..wire import x", ["model may not import tidegate.wire.x"]),
        ("model/a.py", "def f():\n    import orjson", ["model may not import orjson"]),
        ("model/a.py", "from tidegate import decode", ["model may not import tidegate.decode"]),
        ("wire/a.py", "from tidegate.model import b\nimport pyarrow.compute", []),
        ("wire/a.py", "from tidegate import sql", ["wire may not import tidegate.sql"]),
        ("wire/a.py", "import click", ["wire may not import click"]),
        ("wire/a.pyi", "import rich.table", ["wire may not import rich.table"]),
        ("wire/a.pyx", "from libc.stdint cimport (\n    int64_t,\n    uint8_t,\n)", []),
        ("wire/a.pyx", "cimport cython\nfrom .text cimport scan  # why", []),
        (
            "wire/a.pyx",
            '"""\nimport orjson\n"""\nimport orjson, json',
            ["wire may not import orjson"],
        ),
        ("wire/a.pxd", "from ..sql.ddl cimport g", ["wire may not import tidegate.sql.ddl.g"]),
        ("wire/deep/a.py", "from ...lake import x", ["wire may not import tidegate.lake.x"]),
        ("sql/a.py", "import sqlglot\nfrom tidegate.wire import x", []),
        ("spark/a.py", "from pyspark.sql import F\nfrom tidegate.model import x", []),
        ("workload/a.py", "import pyspark", ["workload may not import pyspark"]),
        ("lake/a.py", "from tidegate.cli import main", ["lake may not import tidegate.cli.main"]),
        ("cli.py", "import click\nfrom tidegate.lake import x\nfrom tidegate import workload", []),
        ("misc/a.py", "import json", ["misc is not a layer"]),
        ("__init__.py", "from tidegate.lake import x", []),
    ],
)
def test_the_reading_of_imports(tmp_path: Path, where: str, text: str, expected: list[str]) -> None:
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    assert violations(tmp_path) == [f"{where}: {line}" for line in expected]


def test_importing_the_model_loads_only_the_standard_library() -> None:
    foreign = {
        name
        for name in loaded_by("import tidegate.model")
        if name.partition(".")[0] not in sys.stdlib_module_names
        and name != "tidegate"
        and not (name + ".").startswith("tidegate.model.")
    }
    assert foreign == set()


@pytest.mark.parametrize("package", ["tidegate", "tidegate.wire"])
def test_importing_the_wire_layer_loads_nothing_of_the_layers_above(package: str) -> None:
    unwanted = {"pyspark", "sqlglot", "click", "rich", "fastavro", "orjson", "msgspec"}
    tops = {name.partition(".")[0] for name in loaded_by(f"import {package}")}
    assert tops & unwanted == set()
