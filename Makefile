# Everything a developer or CI runs. `make help` lists it.
VENV ?= .venv
PYTHON ?= python3
STEPS ?= 20
CACHE := $(CURDIR)/.cache
# Folders with prometheus, promtool and alertmanager, separated by colons; the tests run on each where versions matter.
PROMETHEUS_BIN ?= $(CACHE)/prometheus/forky/bin:$(CACHE)/prometheus/bookworm/bin
export PROMETHEUS_BIN
# Older verls that the plugin is tested on, without their dependencies.
VERL_OLDER := 0.6.1 0.7.1 0.8.0
export VERL_VERSIONS := $(CACHE)/verl

.PHONY: help demo test test-fast lint docs bench clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/ready: pyproject.toml
	@echo "Setting up $(VENV): verl, torch and the rest (2 GB, a minute or two) ..."
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[demo,test]'
	@touch $@

demo: $(VENV)/ready ## train a tiny model with verl's real GRPO on CPU and watch it (STEPS=n)
	@exec $(VENV)/bin/verl-prometheus demo --steps $(STEPS)

test: $(VENV)/ready prometheus $(VERL_OLDER:%=$(VERL_VERSIONS)/%/verl) ## all tests, real runs included
	$(VENV)/bin/python -m pytest

test-fast: $(VENV)/ready prometheus $(VERL_OLDER:%=$(VERL_VERSIONS)/%/verl) ## the tests without real verl runs
	$(VENV)/bin/python -m pytest -m "not real_run"

lint: $(VENV)/ready ## ruff and mypy --strict
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: $(VENV)/ready ## docs/metrics.md from the catalogue, docs/settings.md from the settings
	$(VENV)/bin/verl-prometheus metrics --markdown > docs/metrics.md
	$(VENV)/bin/verl-prometheus settings --markdown > docs/settings.md

.PHONY: prometheus
prometheus:
ifneq (,$(findstring $(CACHE),$(PROMETHEUS_BIN)))
	@tests/tools/debian-prometheus.sh $(CACHE)/prometheus bookworm forky
endif

$(VERL_VERSIONS)/%/verl: | $(VENV)/ready
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VERL_VERSIONS)/$* verl==$*

clean: ## remove what make made
	rm -rf $(VENV) $(CACHE) outputs
