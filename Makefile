# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: demo test lint paper bench clean

demo: $(VENV)/core.stamp
	@$(BIN)/python demo.py

test: $(VENV)/test.stamp
	@$(BIN)/python -m pytest

lint: $(VENV)/lint.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

paper: $(VENV)/core.stamp
	@for script in paper/[a-z]*.py; do $(BIN)/python $$script || exit 1; done

bench: $(VENV)/test.stamp
	@for script in benchmarks/[a-z]*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) build dist

$(VENV)/pip.stamp:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Fulcrum needs Python 3.11 or newer. Run: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/core.stamp: pyproject.toml $(VENV)/pip.stamp
	$(PIP) install --editable .
	@touch $@

$(VENV)/test.stamp: pyproject.toml $(VENV)/pip.stamp
	$(PIP) install --editable '.[parquet,nvflare]' --group test
	@touch $@ $(VENV)/core.stamp

$(VENV)/lint.stamp: pyproject.toml $(VENV)/test.stamp
	$(PIP) install --group lint
	@touch $@
