"""The README's examples are run as a reader would run them, in order, from the top of a clone.

A `python` block is executed in one namespace shared by all of them (as a doctest where it has
prompts). Of a `console` block, the commands that start with `tidegate` are run, and where output is
shown under one, it is compared exactly, apart from blanks at the ends of lines.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
README = REPOSITORY / "README.md"

FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    line: int  # of the first line inside the fence
    text: str


class Command(NamedTuple):
    line: int
    text: str
    shown: str  # "" where no output is shown


def blocks(document: str) -> Iterator[Block]:
    for match in FENCE.finditer(document):
        yield Block(match[1], document.count("\n", 0, match.start(2)) + 1, match[2])


def commands(block: Block) -> list[Command]:
    """The `$ ` lines of a console block, each with the output shown under it."""
    found: list[Command] = []
    continued = False
    for number, line in enumerate(block.text.splitlines(), block.line):
        if continued:
            found[-1] = found[-1]._replace(text=f"{found[-1].text}\n{line}")
        elif line.startswith("$ "):
            found.append(Command(number, line[2:], ""))
        elif found:
            found[-1] = found[-1]._replace(shown=f"{found[-1].shown}{line}\n")
        continued = (continued or line.startswith("$ ")) and line.endswith("\\")
    return found


def trimmed(output: str) -> str:
    return "\n".join(line.rstrip() for line in output.splitlines()).strip("\n")


def scratch_clone(folder: Path) -> Path:
    """A folder that looks like the top of a clone, where examples may write files of their own.

    Its `tidegate` command is on the path that `run_examples` gives to commands.
    """
    clone = folder / "clone"
    clone.mkdir()
    for entry in REPOSITORY.iterdir():
        (clone / entry.name).symlink_to(entry)
    command = folder / "bin" / "tidegate"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tidegate.cli "$@"\n')
    command.chmod(0o755)
    return clone


def run_python(block: Block, namespace: dict[str, Any]) -> None:
    name = f"README.md:{block.line}"
    if ">>> " in block.text:
        test = doctest.DocTestParser().get_doctest(
            block.text, namespace, name, "README.md", block.line - 1
        )
        report: list[str] = []
        doctest.DocTestRunner(verbose=False).run(test, out=report.append, clear_globs=False)
        namespace.update(test.globs)
        assert not report, "".join(report)
    else:
        padding = "\n" * (block.line - 1)  # tracebacks then name the README's own lines
        exec(compile(padding + block.text, "README.md", "exec"), namespace)


def run_command(command: Command, clone: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{clone.parent / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=clone,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    where = f"README.md:{command.line}: {command.text}"
    assert done.returncode == 0, f"{where}\nexit status {done.returncode}\n{done.stdout}"
    if command.shown.strip():
        assert trimmed(done.stdout) == trimmed(command.shown), where


def run_examples(document: str, clone: Path) -> int:
    """Run every example of `document`; how many there were."""
    namespace: dict[str, Any] = {"__name__": "readme"}
    count = 0
    for block in blocks(document):
        if block.language == "python":
            run_python(block, namespace)
            count += 1
        elif block.language == "console":
            for command in commands(block):
                if command.text.startswith("tidegate "):
                    run_command(command, clone)
                    count += 1
    return count


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    clone = scratch_clone(tmp_path)
    monkeypatch.chdir(clone)
    return clone


@pytest.mark.skipif(not README.exists(), reason="there is no README yet")
def test_every_example_of_the_readme_runs_and_shows_what_it_says(clone: Path) -> None:
    assert run_examples(README.read_text(encoding="utf-8"), clone) > 0


def document(language: str, text: str) -> str:
    return f"# Title\n\n```{language}\n{text}\n```\n"


@pytest.mark.parametrize(
    "text",
    [
        document("python", "a = 1") + document("python", "assert a == 1"),
        document("python", "a = 1")
        + document("python", ">>> a + 1\n2\n>>> b = 3")
        + document("python", "assert b == 3"),
        document("python", "open('LICENSE').close(); open('made', 'w').close()"),
    ],
)
def test_examples_that_hold_pass(clone: Path, text: str) -> None:
    assert run_examples(text, clone) > 0


@pytest.mark.parametrize(
    "text",
    [
        document("python", "assert 1 == 2"),
        document("python", ">>> 1 + 1\n3"),
        document("console", "$ tidegate no-such-command"),
    ],
)
def test_examples_that_do_not_hold_fail(clone: Path, text: str) -> None:
    with pytest.raises(AssertionError):
        run_examples(text, clone)


def test_only_commands_of_tidegate_are_run(clone: Path) -> None:
    assert run_examples(document("console", "$ make setup\n$ false\n$ exit 1"), clone) == 0


def test_output_is_compared_where_it_is_shown(clone: Path) -> None:
    run_command(Command(1, "echo yes", ""), clone)
    run_command(Command(1, "echo yes", "yes\n"), clone)
    with pytest.raises(AssertionError):
        run_command(Command(1, "echo yes", "no\n"), clone)


def test_a_console_block_is_commands_with_their_output() -> None:
    text = "$ tidegate a \\\n    --b\none\n\ntwo\n$ make\n$ tidegate c | head\nthree"
    [block] = blocks(document("console", text))
    assert commands(block) == [
        Command(4, "tidegate a \\\n    --b", "one\n\ntwo\n"),
        Command(9, "make", ""),
        Command(10, "tidegate c | head", "three\n"),
    ]
