# Needs python3.11, make and pip. Every target installs what it needs into .venv.
PYTHON ?= python3.11
# The CPU build. For another one:  make demo TORCH="torch==2.13.0 --index-url ..."
TORCH ?= torch==2.13.0

VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export RAY_USAGE_STATS_ENABLED := 0
export FLWR_TELEMETRY_ENABLED := 0

.PHONY: help install demo test test-fast check lint types doctest wheel-test bench clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.ready  ## install into .venv

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(TORCH)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[dev,data]'
	touch $@

demo: install  ## four hospitals, patient-level privacy, on Ray
	feddp run hospital

test: install  ## all tests
	python -m pytest

test-fast: install  ## the tests that start no processes (under a minute)
	python -m pytest -m 'not slow and not e2e'

check: lint types doctest wheel-test  ## everything but the tests

lint: install
	ruff check .
	ruff format --check .

types: install
	mypy

doctest: install
	python -m pytest --doctest-modules fedDP -q --no-header

wheel-test: install  ## the wheel runs the named scenario in a clean environment, far from the checkout
	bash scripts/wheel_test.sh

bench: install  ## speed, side by side with Flower's own simulation and with dp-accounting
	python benchmarks/against_flower.py
	python benchmarks/memory.py
	python benchmarks/accounting.py
	python benchmarks/ledger.py

clean:  ## remove .venv and everything built
	rm -rf $(VENV) dist build runs .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
