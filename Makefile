# Each target works alone on a fresh machine with Python 3.11 or later and make.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done)

.PHONY: help demo test test-slow test-core fuzz gpu check lint types layers pages docs compiled wheel

help:
	@echo "make demo       train on a real workload and compare: table, placement, trace, picture"
	@echo "make test       all tests but slow ones and those that need a GPU"
	@echo "make test-slow  the slow tests"
	@echo "make test-core  the demo and the core's tests in a copy without extensions"
	@echo "make fuzz       8,000 damaged files, command lines and calls; CASES=600 of each kind, SEED=..."
	@echo "make gpu        all that needs a GPU, with python3 or PYTHON=..., which has torch with CUDA"
	@echo "make check      what CI runs: lint, types, layers, docs, tests"
	@echo "make pages      numbers, tables and figures of pages from docs/results/data"
	@echo "make docs       the site of docs/, in build/site"
	@echo "make wheel      a wheel with machine code, for this Python and kind of machine, in build/wheel"

demo: $(VENV)/installed
	$(BIN)/python src/run.py budget=quick

# The core's tests run in a copy without extensions; those of the extensions run here.
test: $(VENV)/installed
	$(MAKE) test-core
	$(BIN)/python -m pytest --quiet --numprocesses 2 --dist loadfile tests/extensions tests/project

test-core: $(VENV)/installed
	$(BIN)/python tests/without_extensions.py

test-slow: $(VENV)/installed
	$(BIN)/python -m pytest -m slow

# What it finds is kept as @example of its property.
CASES ?= 600
SEED ?= $(shell date +%s)
FUZZED = tests/extensions/*/test_damaged_*.py
fuzz: $(VENV)/installed
	@echo "SEED=$(SEED)"
	FUZZ_CASES=$(CASES) $(BIN)/python -m pytest tests/fuzz $(FUZZED) -m "slow or not slow" \
		--hypothesis-seed=$(SEED)

# Not from .venv, whose torch may know no GPU, and nothing is installed: benchmarks/gpu.
gpu:
	@test -n "$(PYTHON)" || { echo "make needs Python 3.11 or later on the PATH"; exit 1; }
	@$(PYTHON) -m benchmarks.gpu $(ARGS)

# What can run side by side does; the two processes of the tests then find compiled code.
check: $(VENV)/installed
	$(MAKE) --jobs 2 lint types layers docs compiled
	$(MAKE) test

lint: $(VENV)/installed
	$(BIN)/ruff check src tests benchmarks examples setup.py
	$(BIN)/ruff format --check src tests benchmarks examples setup.py

types: $(VENV)/installed
	$(BIN)/basedpyright

layers: $(VENV)/installed
	$(BIN)/lint-imports

compiled: $(VENV)/installed
	$(BIN)/doppler warm

pages: $(VENV)/installed
	$(BIN)/python -m benchmarks.pages

# The variable silences the theme's advice on its successor.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The build needs the libraries that compile, so it is not isolated from them.
wheel: $(VENV)/installed
	DOPPLER_PREBUILT=1 $(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps \
		--wheel-dir build/wheel .

# torch is pinned here: an unpinned one is a different, much larger install (CONTRIBUTING.md: your own torch).
$(VENV)/installed: pyproject.toml setup.py
	@test -n "$(PYTHON)" || { echo "make needs Python 3.11 or later on the PATH"; exit 1; }
	@echo "building $(VENV) with $(PYTHON) ($$($(PYTHON) --version)): a few minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
