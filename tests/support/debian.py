"""Servers of Debian's packages, unpacked but not installed.

Packages are fetched once and kept in a folder. A machine without apt-get has no such server, and
`MissingServer` says so.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"
FETCH_SECONDS = 120


class MissingServer(Exception):
    """A server is not installed and cannot be fetched; the message says why."""


def unpack(name: str, root: Path, packages: Callable[[], Sequence[str]]) -> None:
    """Fetches the packages of a server and unpacks them below `root`; nothing where that exists."""
    if root.is_dir():
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise MissingServer(f"{name} is not installed, and there is no apt-get to fetch it")
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=root.parent, prefix=f".{root.name}-"))
    except OSError as error:
        raise MissingServer(f"There is no place for the packages of {name}: {error}") from error
    try:
        run(["apt-get", "-qq", "download", *packages()], scratch)
        for package in sorted(scratch.glob("*.deb")):
            run(["dpkg", "-x", str(package), "root"], scratch)
        (scratch / "root").rename(root)
    except (OSError, subprocess.SubprocessError) as error:
        if not root.is_dir():  # else another run was faster
            raise MissingServer(f"The packages of {name} cannot be fetched: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def missing_packages(package: str) -> list[str]:
    """What apt-get would install for a package: itself, and what this machine lacks for it."""
    command = ["apt-get", "-s", "--no-install-recommends", "install", package]
    plan = run(command, Path.cwd()).splitlines()
    return [line.split()[1] for line in plan if line.startswith("Inst ")]


def run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, timeout=FETCH_SECONDS
    )
    return done.stdout


def libraries(root: Path) -> dict[str, str]:
    """The environment in which programs below `root` find their libraries."""
    folders = sorted({str(file.parent) for file in root.rglob("*.so*")})
    return {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}
