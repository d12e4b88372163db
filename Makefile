PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Passed on to the command: make serve ARGS="--http-port=9000"
ARGS   ?=

.PHONY: serve test check format protos bench clean

# The stamp is older than pyproject.toml when dependencies changed.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[examples,dev]'
	touch $@

serve: $(VENV)/.installed  ## install, then serve model_repository/
	$(BIN)/pytriton-lite serve model_repository $(ARGS)

test: $(VENV)/.installed  ## install, then run every test
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.installed  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(VENV)/.installed  ## regenerate pytriton_lite/proto from protos/
	$(BIN)/python protos/generate.py

bench: $(VENV)/.installed  ## throughput beside a peer: make bench ARGS="--peer-command '...'"
	$(BIN)/python benchmarks/compare.py $(ARGS)

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
