"""Builds the compiled modules: one extension for each .pyx file of the package.

TIDEGATE_PORTABLE=1 leaves the x86 vector paths out. TIDEGATE_SANITIZE=1 adds AddressSanitizer.
TIDEGATE_COMPILED=1 compiles nothing: for an editable install after `build_ext --inplace`.
TIDEGATE_JOBS=n translates n modules at once (compile them at once with `build_ext --parallel n`).
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

# These warn of C that Cython writes, not of ours.
quiet_args = ["-Wno-unused-function", "-Wno-sign-compare", "-Wno-discarded-qualifiers"]
compile_args = ["-O3", "-fno-strict-aliasing"]
link_args = []
macros = []
if os.environ.get("TIDEGATE_PORTABLE") == "1":
    macros.append(("TIDEGATE_PORTABLE", "1"))
if os.environ.get("TIDEGATE_SANITIZE") == "1":
    compile_args = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
    link_args = ["-fsanitize=address,undefined"]

package = Path("src/tidegate")
headers = sorted(package.rglob("*.h"))
sources = sorted(package.rglob("*.pyx"))
extensions = [
    Extension(
        ".".join(path.with_suffix("").parts[1:]),
        [str(path)],
        include_dirs=sorted({str(path.parent) for path in headers}),
        depends=[str(path) for path in headers],
        extra_compile_args=compile_args + quiet_args,
        extra_link_args=link_args,
        define_macros=macros,
    )
    for path in sources
]

# The guard is for cythonize's worker processes, which may import this file again.
if __name__ == "__main__":
    if os.environ.get("TIDEGATE_COMPILED") == "1":
        setup()
    else:
        setup(
            ext_modules=cythonize(
                extensions,
                quiet=True,
                compiler_directives={
                    "language_level": 3,
                    "boundscheck": True,
                    "wraparound": False,
                    "cdivision": True,
                    "embedsignature": False,
                },
                nthreads=int(os.environ.get("TIDEGATE_JOBS", "0")),
            )
        )
