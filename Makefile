# `make run` sets up and runs the main job; `make test` sets up and passes the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Half the time of all tests goes into waiting; what the tests of a file share is made once, and one
# worker takes the files that would disturb each other (tests/conftest.py).
WORKERS := -n 4 --dist loadscope --no-loadscope-reorder

.PHONY: native run check test pytest nightly lint bench clean

run: native
	$(BIN)/python kv-cache.py

# Small objects are moved without the interpreter, where there is a C compiler.
native: $(VENV)/run.stamp
	@$(BIN)/python -m kv_cache.tiers.native

# Lint, types, unit and property tests: under two minutes on two cores.
check: $(VENV)/test.stamp
	+$(MAKE) --no-print-directory -j 2 lint pytest TESTS="tests/unit tests/property"

# All tests but the nightly ones, and lint beside them: under ten minutes.
test: $(VENV)/test.stamp
	+$(MAKE) --no-print-directory -j 2 lint pytest

# First one process writes the bytecode that four would each make at once.
pytest: native
	-@$(BIN)/python -m pytest -q --collect-only $(TESTS) > /dev/null
	$(BIN)/python -m pytest -q $(WORKERS) $(TESTS)

# What only an idle machine can show (VALID of a live run), full products of choices, and ten times
# as many examples of each law, others each time.
nightly: $(VENV)/test.stamp
	$(BIN)/python -m pytest -q -m nightly
	$(BIN)/python -m pytest -q $(WORKERS) --hypothesis-profile=explore tests/unit tests/property

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.lines

bench: $(VENV)/test.stamp
	$(BIN)/python benchmarks/all.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: $(VENV)/bin/python requirements.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile -e '.[dev,zstd]'
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib || true  # on all cores; some wheels have templates
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
