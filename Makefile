# One folder, one environment: everything below needs git, Python >= 3.11 and make, and installs the rest by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help run test lint conformance format bench lock clean

help:  ## show what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	@echo "Installing into $(VENV): a minute or two the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: $(STAMP)  ## serve the example with real MCP servers; prints URLs and keys
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/gateway demo --config gateway.yaml

test: $(STAMP)  ## all tests, or some: make test ARGS=tests/config
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

conformance: $(STAMP)  ## the MCP conformance suite against gateway and connectors, or one bar: ARGS=direct
	$(BIN)/python -m tests.conformance $(ARGS)

format: $(STAMP)  ## let ruff format and fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## CPU per request, as ratios to a bare Starlette handler in the same run
	$(BIN)/python -m loadtests.baseline

lock: $(STAMP)  ## resolve the pinned requirements anew; hashes, no addresses
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
		--no-annotate --no-header --extra dev --python-version 3.11 pyproject.toml requirements/build.in -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
		--no-annotate --no-header --python-version 3.11 pyproject.toml -o requirements/runtime.txt

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
