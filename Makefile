# Needs Python 3.11 to 3.13 and make; everything else comes hash-locked into .venv.
# Set-up is done again only when a lock file or pyproject.toml changes.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
SUITABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
UV ?= $(BIN)/uv

.PHONY: help setup demo test test-long lint format bench lines clean lock

help:
	@echo "make setup   make $(VENV) with the locked dependencies"
	@echo "make demo    run the shop live in the terminal (Ctrl-C ends it)"
	@echo "make test    lint, types, then the whole suite, fast tests first"
	@echo "make test-long   the tests with made-up input, each SEEDS times (20) with other input"
	@echo "make lint    ruff and mypy"
	@echo "make format  rewrite the sources in the one format"
	@echo "make bench   measure, check the results, print one JSON line per figure"
	@echo "make lines   count the lines of code in src, without comments, docstrings and blank lines"
	@echo "make lock    write the lock files anew (needs uv)"
	@echo "make clean   remove what make and the tests have made"

setup: $(VENV)/.developed

demo: $(VENV)/.installed
	$(BIN)/headrace demo $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

SEEDS ?= 20

test-long: lint
	$(BIN)/python -m pytest -m seeded --seeds $(SEEDS) $(ARGS)

lint: $(VENV)/.developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.developed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed
	$(BIN)/headrace bench $(ARGS)

lines: $(VENV)/.installed
	@$(BIN)/python -m bench.lines

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# PYTHON=… chooses the interpreter; otherwise the first suitable one of these is taken.
$(BIN)/python:
	@python="$(PYTHON)"; \
	for candidate in $${python:-python3 python3.13 python3.12 python3.11 python}; do \
	  if $$candidate -c '$(SUITABLE)' >/dev/null 2>&1; then \
	    echo "$$candidate -m venv $(VENV)"; exec $$candidate -m venv $(VENV); \
	  fi; \
	done; \
	echo "make: no Python 3.11 to 3.13 with venv found; install one (on Debian also python3-venv)" \
	  "or say which: make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; \
	exit 1

# pyspark comes as source only: it is built with the locked setuptools, not with whatever is newest.
# Compiling is done once and on all cores: without it each start of a process takes a second longer.
$(VENV)/.installed: $(BIN)/python requirements-build.lock requirements.lock pyproject.toml
	$(PIP) install --quiet --require-hashes --only-binary :all: -r requirements-build.lock
	$(PIP) install --quiet --require-hashes --no-build-isolation --no-compile -r requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib src
	@touch $@

$(VENV)/.developed: $(VENV)/.installed requirements-dev.lock
	$(PIP) install --quiet --require-hashes --no-build-isolation --no-compile -r requirements-dev.lock
	@touch $@

COMPILE := $(UV) pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
  --no-annotate --no-emit-index-url --no-emit-find-links --no-header --quiet

lock:
	$(COMPILE) --output-file requirements.lock
	$(COMPILE) --group dev --constraint requirements.lock --output-file requirements-dev.lock
	$(UV) pip compile --group build --universal --python-version 3.11 --generate-hashes \
	  --no-annotate --no-emit-index-url --no-emit-find-links --no-header --quiet \
	  --output-file requirements-build.lock
