"""What Python workers are spared does not change what they can import."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

SCRIPT = """
import importlib, sys
from zipimport import zipimporter
from tidegate.spark.workers import forget_zip_importers

sys.path.insert(0, sys.argv[1])
import first
assert any(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())
forget_zip_importers()
assert not any(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())
importlib.invalidate_caches()
import second
print(first.NAME, second.NAME)
"""


def test_modules_of_a_zip_are_still_found(tmp_path: Path) -> None:
    package = tmp_path / "package.zip"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("first.py", "NAME = 'first'\n")
        archive.writestr("second.py", "NAME = 'second'\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(package)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "first second\n", "")
