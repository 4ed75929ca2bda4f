# Every target installs the virtual environment first if it is missing or out of date.
# Flower 1.41 needs Python 3.11: use python3, or a newer version installed beside it.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
GRID ?= configs/grids/quick.toml
# One worker runs all tests of a file; tests/conftest.py decides the order of the files.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
TEST_WORKERS ?= 4

.PHONY: help run compare grid deploy-demo bench test quick docs lint packages unit browser e2e fmt clean

help:            ## this list
	@grep -E '^[a-z0-9-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

run: $(VENV)/installed          ## FLFA on 20 simulated nodes (ARGS="--nodes 50 --run-config seed=1")
	@$(BIN)/python -m flfa_app.launch $(ARGS)

compare: $(VENV)/installed      ## backpropagation and FLFA with one seed, and the difference
	@$(BIN)/python -m flfa_app.compare $(ARGS)

grid: $(VENV)/installed         ## all runs of a grid file, its table and report (GRID=configs/grids/quick.toml)
	@$(BIN)/python -m flfa_app.experiments run $(GRID) $(ARGS)
	@$(BIN)/python -m flfa_app.experiments table $(GRID)
	@$(BIN)/python -m flfa_app.experiments report $(GRID)

deploy-demo: $(VENV)/installed  ## FLFA on real nodes here, with TLS and node keys (ARGS="--output-dir runs")
	@$(BIN)/python -m flfa_app.deploy_demo $(ARGS)

bench: $(VENV)/installed        ## every benchmark and a table of all: an hour and a half (ARGS="--only train_step")
	@$(BIN)/python -m benchmarks $(ARGS)

test: lint packages             ## everything: style, types, all tests (a quarter of an hour on two cores)
	$(PYTEST) -n $(TEST_WORKERS) $(ARGS)

quick: $(VENV)/installed        ## style, types, and the unit tests of what has changed (90 seconds)
	@$(BIN)/python -m tests.quick

lint: $(VENV)/installed         ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

packages: $(VENV)/installed     ## the Debian packages that tests need, if this user may install them
	@$(BIN)/python -m tests.system_packages

unit: $(VENV)/installed         ## the tests that need no Flower processes and no browser
	$(PYTEST) -n 2 -m "not e2e and not browser" $(ARGS)

browser: packages               ## the report in headless Chromium
	$(PYTEST) tests/browser $(ARGS)

e2e: packages                   ## the tests that run Flower (minutes)
	$(PYTEST) -n 3 -m e2e tests/e2e tests/faults $(ARGS)

docs: $(VENV)/installed         ## write the generated docs and the keys in pyproject.toml
	$(BIN)/python -m docs.generate

fmt: $(VENV)/installed          ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:           ## remove the environment and all caches; results stay
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# The stamp holds what was installed, so that other changes of pyproject.toml install
# nothing. It is written last: an interrupted installation starts again.
INSTALLED := import json, tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
  print(json.dumps([p["build-system"], p["project"], p["tool"]["hatch"]], indent=1))

$(VENV)/installed: pyproject.toml
	@'$(PYTHON)' -c '$(NEW_ENOUGH)' || \
	  { echo "Python 3.11 or newer is needed (Flower 1.41 needs it): make PYTHON=/path/to/python3 ..."; exit 1; }
	@mkdir -p $(VENV)
	@$(PYTHON) -c '$(INSTALLED)' > $(VENV)/wanted
	@cmp -s $(VENV)/wanted $@ || { \
	  echo "Installing into $(VENV): 6 GB, some minutes the first time ..." && \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'; }
	@mv $(VENV)/wanted $@
