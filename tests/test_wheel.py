"""The wheel is installed as a user installs it: into an empty environment, without a compiler.

With TIDEGATE_ALL=1 everything that a mirror needs is installed too, and the demo runs from it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
CAPTURE = REPOSITORY / "src/tidegate/cli/captures/craft.jsonl"


def run(*command: str | Path, cwd: Path, path: str, **environment: str) -> str:
    """What a command prints; nothing of this environment is in its way but the home folder."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={"PATH": path, "HOME": os.environ["HOME"], **environment},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    target = tmp_path_factory.mktemp("dist")
    run(
        *(
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--wheel",
            "--outdir",
            target,
            REPOSITORY,
        ),
        cwd=REPOSITORY,
        path=os.environ["PATH"],
    )
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty virtual environment."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder, cwd=folder, path=os.environ["PATH"])
    return folder / "bin" / "python"


def install(python: Path, wheel: Path, extras: str) -> None:
    """Installs the wheel with extras where no compiler is on the path."""
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(
        *pip,
        *("--only-binary", ":all:", "--constraint", REPOSITORY / "constraints.txt"),
        f"{wheel}{extras}",
        cwd=wheel.parent,
        path=str(python.parent),
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
    )


def test_the_wheel_works_in_an_empty_environment(python, wheel, tmp_path):
    install(python, wheel, "")
    command = python.parent / "tidegate"
    code = (
        "from tidegate.wire import decode_batch; print(decode_batch('craft', None, [b'']).num_rows)"
    )
    assert run(python, "-c", code, cwd=tmp_path, path="") == "1\n"
    alone = subprocess.run([command, "--help"], capture_output=True, text=True)
    assert alone.returncode == 2
    assert alone.stderr.endswith("needs click and rich. Run: pip install 'tidegate[cli]'\n")
    install(python, wheel, "[cli]")
    shown = run(command, "inspect", CAPTURE, "--limit", "4", cwd=tmp_path, path="")
    assert "CREATE DATABASE `d1`" in shown


@pytest.mark.skipif(not os.environ.get("TIDEGATE_ALL"), reason="it installs Spark")
def test_the_demo_runs_from_the_wheel(python, wheel, tmp_path):
    install(python, wheel, "[mirror]")
    tools = os.environ["PATH"]  # Java, and Maven for the jars
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "TIDEGATE_JARS") if name in os.environ}
    jars = REPOSITORY / ".jars"
    if "TIDEGATE_JARS" not in kept and jars.is_dir():
        kept["TIDEGATE_JARS"] = str(jars)
    run(python.parent / "tidegate", "demo", cwd=tmp_path, path=tools, **kept)
