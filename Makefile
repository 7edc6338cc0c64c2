# Any target may be the first one: each creates or reuses .venv, installs what is missing, then does its job.
# What is installed is remembered in .venv/stamps, so that a target whose files did not change starts at once.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHON := $(CURDIR)/.venv/bin/python
stamps := .venv/stamps
pip := $(PYTHON) -m pip --quiet --disable-pip-version-check
native := CMakeLists.txt $(shell find csrc -name '*.cpp' -o -name '*.h')

.PHONY: help train test test-all coverage lint format build docs docs-serve release-check benchmark clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 20

train: $(stamps)/khop  ## train GraphSAGE on Debian's package graph; ARGS="--epochs 5" adds options
	khop train debian $(ARGS)

test: $(stamps)/dev  ## the core of the suite, in minutes: C++ under sanitizers, Python
	scripts/test

test-all: $(stamps)/dev  ## everything, in hours; PARTS="site wheel" for these parts, PARTS=--list prints them
	$(PYTHON) scripts/test-all $(PARTS)

coverage: $(stamps)/dev  ## the Python tests of make test with lines and branches counted, at least 90 % of each
	scripts/coverage

lint: $(stamps)/dev  ## ruff, format, mypy --strict
	scripts/check

format: $(stamps)/dev  ## let ruff write what it can mend itself
	ruff check --fix --quiet . && ruff format --quiet .

build: $(stamps)/dev  ## sdist and wheel into dist/
	python -m build --no-isolation --outdir dist .

docs: $(stamps)/dev  ## the documentation site, in build/docs; no network is used
	python scripts/build_docs.py

docs-serve: docs  ## show the site on http://127.0.0.1:8000
	python -m http.server --bind 127.0.0.1 --directory build/docs 8000

release-check: $(stamps)/dev  ## build, install and try a release as its users will; ARGS="--help" lists options
	$(pip) install --constraint constraints.txt --group release
	python scripts/release_check.py $(ARGS)

benchmark: $(stamps)/dev  ## list the benchmarks; NAME=import_time runs one
	scripts/benchmark $(NAME)

clean:  ## remove what was built and installed here
	rm -rf .venv build dist

$(stamps)/venv: scripts/make-venv
	scripts/make-venv .venv
	@mkdir -p $(stamps) && touch $@

$(stamps)/khop: $(stamps)/venv pyproject.toml constraints.txt $(native)
	@scripts/install
	@touch $@

$(stamps)/dev: $(stamps)/khop
	@echo "Installing the tools for tests into .venv ..."
	@$(pip) install "pip>=25.1"  # with dependency groups
	@$(pip) install --constraint constraints.txt --group dev
	@touch $@
