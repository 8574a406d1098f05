"""What must hold of the repository as a whole, beside what its code does."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tidegate import __version__

REPOSITORY = Path(__file__).resolve().parents[1]
CONFIGURATION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = CONFIGURATION["project"]

# Spelled in pieces: this file is looked at too.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("repo", "maven", "apache", "org"),
        ("repo1", "maven", "org"),
        ("proxy", "golang", "org"),
        ("registry", "npmjs", "org"),
        ("static", "crates", "io"),
        ("index", "crates", "io"),
        ("conda", "anaconda", "org"),
    ]
]


def tracked() -> list[Path]:
    """The files of the repository: those git has, and those it would take."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run(
        [
            "git",
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def under(*folders: str) -> list[Path]:
    roots = [REPOSITORY / folder for folder in folders]
    return [path for path in tracked() if any(path.is_relative_to(root) for root in roots)]


def named(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def normal(name: str) -> str:
    """A distribution's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, version in (pin.split("==") for pin in pins)}


def requirements(entries: list[str]) -> set[str]:
    return {normal(re.split(r"[^\w.-]", entry, maxsplit=1)[0]) for entry in entries}


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    text = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    odd = [
        line
        for line in text.splitlines()
        if not line.startswith("#") and not re.fullmatch(r"[\w.-]+==[\w.+!]+", line)
    ]
    assert odd == []
    assert "://" not in text


def test_constraints_name_everything_installed() -> None:
    if sys.prefix == sys.base_prefix:
        pytest.skip("not in a virtual environment of its own")
    pins = constraints()
    installed = {
        normal(distribution.name): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    for tool in ("pip", "wheel", "tidegate"):
        installed.pop(tool, None)
    assert {name: pins.get(name) for name in installed} == installed


def opening(path: Path) -> str:
    """The file's text from its first line that is not blank or a comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith("#")):
        lines.pop(0)
    return "\n".join(lines)


def says_what_it_is_for(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    if not text.strip():
        return path.name == "__init__.pxd"  # Cython wants the file, not its content
    if path.suffix == ".py":
        return bool(ast.get_docstring(ast.parse(text)))
    if path.suffix == ".pyx":
        return opening(path).startswith(('"""', 'r"""'))
    return text.startswith(('"""', "#", "/*", "//"))


def test_every_source_file_says_what_it_is_for() -> None:
    kinds = {".py", ".pyx", ".pxd", ".h"}  # a stub is spoken for by its module
    sources = [path for path in under("src") if path.suffix in kinds]
    assert [named(path) for path in sources if not says_what_it_is_for(path)] == []


def test_no_file_names_a_package_registry_or_this_checkout() -> None:
    unwanted = [*REGISTRY_HOSTS, str(REPOSITORY)]
    if len(Path.home().parts) > 1:
        unwanted.append(f"{Path.home()}/")
    found = []
    for path in tracked():
        content = path.read_bytes()
        found += [f"{named(path)}: {text}" for text in unwanted if text.encode() in content]
    assert found == []


def third_party_imports(paths: list[Path]) -> set[str]:
    local = {"tidegate", "tests", "bench", "fuzz"} | {path.stem for path in paths}
    tops: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                tops |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                tops.add(node.module.partition(".")[0])
    return {normal(top) for top in tops - local - sys.stdlib_module_names}


def test_every_library_the_package_imports_is_a_dependency() -> None:
    sources = [path for path in under("src") if path.suffix == ".py"]
    extras = PROJECT["optional-dependencies"].items()
    optional = [entry for name, entries in extras if name != "dev" for entry in entries]
    assert third_party_imports(sources) <= requirements(PROJECT["dependencies"] + optional)


def test_the_dev_extra_is_what_tests_and_benchmarks_import() -> None:
    sources = [path for path in under("tests", "bench", "fuzz") if path.suffix == ".py"]
    declared = requirements(PROJECT["optional-dependencies"]["dev"])
    assert third_party_imports(sources) <= declared | requirements(PROJECT["dependencies"])
    assert declared | requirements(PROJECT["dependencies"]) <= constraints().keys()


def test_the_package_takes_every_file_of_the_source_along() -> None:
    patterns = CONFIGURATION["tool"]["setuptools"]["package-data"]["tidegate"]
    package = REPOSITORY / "src" / "tidegate"
    data = [path.relative_to(package) for path in under("src") if path.suffix != ".py"]
    assert [path for path in data if not any(fnmatch(str(path), each) for each in patterns)] == []


def test_text_files_end_their_lines_well() -> None:
    kinds = {".py", ".pyx", ".pxd", ".pyi", ".h", ".md", ".toml", ".txt"}
    golden = REPOSITORY / "tests" / "golden"
    found = []
    for path in tracked():
        if path.suffix not in kinds or path.is_relative_to(golden):
            continue
        content = path.read_bytes()
        if content and not content.endswith(b"\n"):
            found.append(f"{named(path)}: no newline at the end")
        if b"\r" in content:
            found.append(f"{named(path)}: carriage return")
        numbered = enumerate(content.split(b"\n"), 1)
        found += [
            f"{named(path)}:{n}: trailing blanks"
            for n, line in numbered
            if line[-1:] in b" \t" and line
        ]
    assert found == []


def test_make_help_lists_every_target() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^\.PHONY: (\w+)$", makefile, re.MULTILINE)
    helped = subprocess.run(
        ["make", "-s", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert re.findall(r"^  (\w+) ", helped.stdout, re.MULTILINE) == targets


def test_the_changelog_begins_with_unreleased_changes_and_the_current_version() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    versions = []
    for heading in headings[1:]:
        release = re.fullmatch(r"\[([\d.]+)\] - \d{4}-\d{2}-\d{2}", heading)
        assert release is not None, f"{heading!r} is not [version] - date"
        versions.append(release[1])
    assert versions[0] == __version__


def test_the_changelog_groups_changes_by_kind() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    groups = set(re.findall(r"^### (.+)$", changelog, re.MULTILINE))
    assert groups <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
