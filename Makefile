# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: demo test lint paper bench clean

demo: $(VENV)/core.stamp
	@mkdir -p out
	@$(BIN)/fulcrum exposure consortium
	@$(BIN)/fulcrum plan consortium --rounds 10 --epsilon 1 -o out/plan.json
	@$(BIN)/fulcrum compare consortium --rounds 10 --epsilon 1
	@$(BIN)/fulcrum verify out/plan.json --format csv > out/verify.csv
	@echo "Shown: how exposed each country of a consortium of 50 hospitals is, the noise each hospital must add for"
	@echo "epsilon 1 against everyone above its country, and what other allocations need for the same guarantee."
	@echo "The plan is out/plan.json; every number in it was recomputed in out/verify.csv."

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
	$(PIP) install --editable '.[train]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml $(VENV)/pip.stamp
	$(PIP) install --editable '.[parquet,nvflare,train,embed,report]' --group test
	@touch $@ $(VENV)/core.stamp

$(VENV)/lint.stamp: pyproject.toml $(VENV)/test.stamp
	$(PIP) install --group lint
	@touch $@
