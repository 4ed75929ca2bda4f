# Each target is a command a person could type; the environment is made when needed.
# The first Python that Flower 1.41 can use: python3, or a newer one beside it.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
GRID ?= configs/grids/quick.toml

.PHONY: help run compare grid deploy-demo bench test lint unit browser e2e fmt clean

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

test: lint unit browser e2e     ## everything: style, types, tests, tests with Chromium and Flower

lint: $(VENV)/installed         ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(VENV)/installed         ## the tests that need no Flower processes and no browser
	$(BIN)/python -m pytest -n 2 -m "not e2e and not browser" $(ARGS)

browser: $(VENV)/installed      ## the report in headless Chromium (needs chromium, chromium-driver)
	$(BIN)/python -m pytest -m browser $(ARGS)

e2e: $(VENV)/installed          ## the tests that run Flower (minutes)
	$(BIN)/python -m pytest -m e2e $(ARGS)

fmt: $(VENV)/installed          ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:           ## remove the environment and all caches; results stay
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Made last, so that an interrupted installation is taken up again.
$(VENV)/installed: pyproject.toml
	@'$(PYTHON)' -c '$(NEW_ENOUGH)' || \
	  { echo "Python 3.11 or newer is needed (Flower 1.41 needs it): make PYTHON=/path/to/python3 ..."; exit 1; }
	@echo "Installing into $(VENV): 6 GB, some minutes the first time ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@
