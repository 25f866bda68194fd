# Every target needs only Python and make: the first one makes .venv and installs the package into it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install test test-long test-details lint demo bench docs clean

install: .venv/.installed

# Installed once, and again when the dependencies change.
.venv/.installed: pyproject.toml
	@test -d .venv || $(PYTHON) -m venv .venv
	@echo "Installing hirl and what it needs into .venv (a few minutes and about 6 GB the first time) ..."
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --editable '.[dev]'
	@touch $@

test: install lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test-long: install
	$(BIN)/python -m pytest -n 0 -m long

# Breaks each detail of the methods in turn and expects a test to fail.
test-details: install
	$(BIN)/python tests/break_details.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: install
	@$(BIN)/hirl demo

bench: install
	$(BIN)/python -m benchmarks

# The documentation as a site in site/; any broken link or missing page is an error.
docs: install
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf site .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
