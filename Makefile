# Everything a contributor runs. `make` alone lists the targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
WORKERS ?= $(shell n=$(JOBS); echo $$((n < 4 ? n : 4)))
MINUTES ?= 5
ROUNDS ?= 50
ARGS ?=

# Tests go in so many processes, each with a Spark and a Kafka of its own; a file stays in one.
# In their order: the long files of the lake come before the many short ones of the wire, not last.
SIDE_BY_SIDE = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --quiet --disable-pip-version-check --no-input
INSTALL := $(PIP) install --progress-bar off --constraint constraints.txt

# What the compiled modules are made from, and what the whole package is made from.
COMPILED_FROM := setup.py $(shell find src -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
PACKAGE_FROM := $(COMPILED_FROM) pyproject.toml $(shell find src -name '*.py' -o -name '*.pyi' -o -name py.typed)

# A stamp is touched when its step is done; a newer prerequisite repeats the step. Those of the
# virtual environment live in it, those of compiled code in build/, so that each goes with its work.
VENV_MADE := $(VENV)/.made
TOOLS_IN := $(VENV)/.build-tools
PACKAGES_IN := $(VENV)/.packages
BUILT := build/.built
JARS_IN := .jars/.fetched
PORTABLE := build/portable
SANITIZED := build/sanitize

# setup.py itself knows what is out of date, except for what its own text changes (flags, directives):
# where it is newer than the stamp, everything is made again.
SETUP := PYTHONDONTWRITEBYTECODE= TIDEGATE_JOBS=$(JOBS) $(RUN) setup.py --quiet
FORCE = $(if $(filter setup.py,$?),--force)
FORCE_TRANSLATION = $(if $(filter setup.py,$?),CYTHON_FORCE_REGEN=1)

.PHONY: help
help: ## list the targets
	@echo "usage: make TARGET [PYTHON=python3] [JOBS=$(JOBS)]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16

.PHONY: setup
setup: $(PACKAGES_IN) $(BUILT) ## make .venv, install pinned packages, compile; skipped where up to date

$(VENV_MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Tidegate needs Python 3.11 or newer; try: make setup PYTHON=python3.12"; exit 1; }
	@echo "setup: making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(TOOLS_IN): constraints.txt | $(VENV_MADE)
	@echo "setup: installing the build tools"
	@$(INSTALL) setuptools Cython
	@touch $@

$(BUILT): $(COMPILED_FROM) | $(TOOLS_IN)
	@echo "setup: compiling tidegate.wire"
	@$(FORCE_TRANSLATION) $(SETUP) build_ext --inplace --parallel $(JOBS) $(FORCE)
	@mkdir -p $(@D) && touch $@

# After the compilation, which the editable install would otherwise do again in a folder of its own.
$(PACKAGES_IN): constraints.txt pyproject.toml | $(TOOLS_IN) $(BUILT)
	@echo "setup: installing the packages of constraints.txt, and tidegate itself (editable)"
	@TIDEGATE_COMPILED=1 $(INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@

.PHONY: jars
jars: $(JARS_IN) ## fetch the jars of Spark's connectors and of the test servers (Maven); skipped where there

$(JARS_IN): src/tidegate/spark/jars.py | $(PACKAGES_IN)
	@echo "jars: fetching the jars of Spark's connectors and of the test servers into .jars"
	@$(RUN) -m tidegate.spark.jars .jars --s3 --s3a --postgresql --test-servers
	@touch $@

.PHONY: kafka
kafka: setup jars ## run a Kafka broker on loopback until Ctrl-C, for trials
	@$(RUN) -m tests.support.kafka $(ARGS)

.PHONY: demo
demo: setup jars ## mirror two made-up databases into lakes and check every snapshot; needs no Kafka and no TiDB
	@$(RUN) -m tidegate.cli demo

.PHONY: test
test: lint jars ## run every check: lint, types, tests, and the wire tests on the portable build
	@echo "test: pytest"
	@$(RUN) -m pytest $(SIDE_BY_SIDE) --durations 20 --durations-min 10 $(ARGS)
	@$(MAKE) portable

.PHONY: test-all
test-all: ## run every check, with the cases that take too long for every day
	@TIDEGATE_ALL=1 $(MAKE) test

.PHONY: portable
portable: setup $(PORTABLE)/.built ## run the wire tests on a build without vector instructions
	@echo "test: the wire tests on the portable build"
	@PYTHONPATH=$(PORTABLE)/lib $(RUN) -c 'import tidegate; assert "/$(PORTABLE)/" in tidegate.__file__'
	@PYTHONPATH=$(PORTABLE)/lib $(RUN) -m pytest $(SIDE_BY_SIDE) tests/wire -k "golden or text or scan"

.PHONY: lint
lint: setup ## check style and types (ruff, mypy)
	@echo "lint: ruff check"
	@$(RUN) -m ruff check --quiet
	@echo "lint: ruff format"
	@$(RUN) -m ruff format --quiet --check || { $(RUN) -m ruff format --check; echo "run: make format"; exit 1; }
	@echo "lint: mypy"
	@$(RUN) -m mypy --no-error-summary

.PHONY: format
format: setup ## rewrite the Python files in the house style
	@$(RUN) -m ruff check --quiet --fix-only
	@$(RUN) -m ruff format

.PHONY: wheel
wheel: setup ## build a wheel and a source archive into dist/
	@$(RUN) -m build --no-isolation --sdist --wheel --outdir dist

.PHONY: bench
bench: setup ## run the benchmarks; ARGS is passed on
	@$(RUN) -m bench $(ARGS)

.PHONY: bench-spark
bench-spark: setup jars ## measure reading a feed with Spark, from a real Kafka; ARGS is passed on
	@$(RUN) -m bench.spark $(ARGS)

.PHONY: bench-memory
bench-memory: setup jars ## stream five million changes with Spark and watch its memory; ARGS is passed on
	@$(RUN) -m bench.spark_memory $(ARGS)

.PHONY: bench-backlog
bench-backlog: setup jars ## measure what a backlog costs the driver; ARGS is passed on
	@$(RUN) -m bench.backlog $(ARGS)

.PHONY: bench-lake
bench-lake: setup jars ## measure mirroring a feed into a lake beside scripts by hand; ARGS is passed on
	@$(RUN) -m bench.lake $(ARGS)

.PHONY: soak
soak: setup jars ## kill a mirror on a real Kafka ROUNDS times (default 50), then compare; ARGS is passed on
	@$(RUN) -m tests.support.soak run --rounds $(ROUNDS) $(ARGS)

.PHONY: model-check
model-check: setup ## mirror random histories in memory and compare, for MINUTES (default 5); ARGS is passed on
	@$(RUN) -m tests.model_check run --minutes $(MINUTES) $(ARGS)

# PYTHONMALLOC shows the sanitizer every object's end; libstdc++ must be there before pyarrow throws.
.PHONY: fuzz
fuzz: setup $(SANITIZED)/.built ## fuzz the decoders under AddressSanitizer for MINUTES (default 5)
	@LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	  PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  PYTHONPATH=$(SANITIZED)/lib $(RUN) fuzz/run.py --minutes $(MINUTES) $(ARGS)

# Whole packages beside the source, from the same generated C with other compiler flags.
$(PORTABLE)/.built: private BUILD_AS := TIDEGATE_PORTABLE=1
$(SANITIZED)/.built: private BUILD_AS := TIDEGATE_SANITIZE=1
$(PORTABLE)/.built $(SANITIZED)/.built: $(PACKAGE_FROM) | $(BUILT)
	@echo "build: compiling tidegate.wire into $(@D)"
	@$(BUILD_AS) $(SETUP) build --build-base $(@D) --build-lib $(@D)/lib --parallel $(JOBS) $(FORCE)
	@touch $@

.PHONY: clean
clean: ## remove what was compiled, and caches; .venv stays
	rm -rf build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src/tidegate \( -name '*.c' -o -name '*.so' \) -delete
	find src tests bench fuzz -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
