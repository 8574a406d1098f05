"""Inside the wire layer: imports point one way, and files and functions stay readable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.test_boundaries import cython_imports, python_imports

WIRE = Path(__file__).resolve().parents[2] / "src" / "tidegate" / "wire"
PROTOCOLS = ("open", "canal", "simple", "craft", "cdc")
RANKS = {"options": 0, "kernel": 0, "batch": 1, "codec": 2} | dict.fromkeys(PROTOCOLS, 3)
FRONT = 4

MOST_LINES = 900
MOST_FUNCTION_LINES = 80
MOST_MODULES = 12


def sources() -> list[Path]:
    return sorted(
        path for path in WIRE.rglob("*") if path.suffix in {".py", ".pyi", ".pyx", ".pxd"}
    )


def part_of(path: Path) -> str:
    """The sub-package of a file, or the name of a front module."""
    return path.relative_to(WIRE).parts[0].partition(".")[0]


def imported_parts(path: Path) -> Iterator[str]:
    package = ["tidegate", "wire", *path.relative_to(WIRE).parts[:-1]]
    read = python_imports if path.suffix in {".py", ".pyi"} else cython_imports
    for parts in read(path.read_text(encoding="utf-8"), package):
        if parts[:2] == ["tidegate", "wire"] and len(parts) > 2:
            yield parts[2]


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """The name and the number of lines of each function of a Cython file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [
        (i, len(line) - len(line.lstrip()), line.strip())
        for i, line in enumerate(lines)
        if re.match(r" *(cdef|cpdef|def)\b(?! (class|struct|enum|extern))[^=]*\(", line)
    ]
    for start, indent, name in starts:
        end = last = start
        for i in range(start + 1, len(lines)):
            text = lines[i].strip()
            if text and len(lines[i]) - len(lines[i].lstrip()) <= indent and text[0] != ")":
                break
            last = i if text else last
            end = last
        yield name, end - start + 1


def test_imports_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(WIRE)} imports {imported}"
        for path in sources()
        if path.parent != WIRE
        for imported in imported_parts(path)
        if RANKS.get(imported, FRONT) > RANKS[part_of(path)]
        or (imported in PROTOCOLS and imported != part_of(path))
    ]
    assert wrong == []


def test_no_file_is_too_long() -> None:
    long = [
        f"{path.relative_to(WIRE)}: {count} lines"
        for path in sources()
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    ]
    assert long == []


def test_no_compiled_function_is_too_long() -> None:
    long = [
        f"{path.relative_to(WIRE)}: {name} has {count} lines"
        for path in sources()
        if path.suffix in {".pyx", ".pxd"}
        for name, count in functions(path)
        if count > MOST_FUNCTION_LINES
    ]
    assert long == []


def test_no_folder_has_too_many_modules() -> None:
    folders = {path.parent for path in sources()}
    counts = {
        folder: {path.stem for path in folder.iterdir() if path in sources()} for folder in folders
    }
    assert [str(folder) for folder, names in counts.items() if len(names) > MOST_MODULES] == []


def test_the_reading_of_functions(tmp_path: Path) -> None:
    path = tmp_path / "a.pyx"
    path.write_text(
        "cdef int f(\n    int a,\n):\n    return 1\n\n\ncdef int x = g(1)\n", encoding="utf-8"
    )
    assert list(functions(path)) == [("cdef int f(", 4)]
