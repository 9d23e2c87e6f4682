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

.PHONY: help demo test test-alerts test-others test-fast lint docs dashboards stack scenarios bench clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/ready: pyproject.toml
	@echo "Setting up $(VENV): verl, torch and the rest (2 GB, a minute or two) ..."
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[demo,test,dashboards]'
	@touch $@

demo: $(VENV)/ready ## train a tiny model with verl's real GRPO on CPU and watch it (STEPS=n)
	@exec $(VENV)/bin/verl-prometheus demo --steps $(STEPS)

NODE_MODULES := tests/grafana_node/node_modules/ready
TOOLS := $(VENV)/ready prometheus $(NODE_MODULES) $(VERL_OLDER:%=$(VERL_VERSIONS)/%/verl)

test: $(TOOLS) ## all tests, real runs included
	@$(MAKE) --no-print-directory --jobs=2 test-alerts test-others

# Eight minutes, most of which it waits for alerts: beside the others.
test-alerts:
	$(VENV)/bin/python -m pytest --quiet tests/test_alerts_end_to_end.py

test-others:
	$(VENV)/bin/python -m pytest --ignore=tests/test_alerts_end_to_end.py

test-fast: $(TOOLS) ## the tests without real verl runs
	$(VENV)/bin/python -m pytest -m "not real_run"

lint: $(VENV)/ready ## ruff and mypy --strict
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	MYPYPATH=grafana:exporter $(VENV)/bin/mypy --python-version 3.11 grafana/verl_dashboards deploy/compose/demo.py

dashboards: $(VENV)/ready ## the boards' JSON and drawings from their code
	PYTHONPATH=grafana $(VENV)/bin/python -m verl_dashboards grafana/dashboards docs/dashboards

stack: prometheus ## Prometheus, Alertmanager and Grafana (if installed) with the shipped configuration
	deploy/compose/stack.sh $(CACHE)/stack

scenarios: $(TOOLS) ## the logs that the alert rules are tested on, made anew by real training (an hour)
	cd tests && PYTHONPATH=. ../$(VENV)/bin/python -m scenarios.generate

bench: $(VENV)/ready ## costs as ratios: log(), scrapes, GPU sampling, backfill
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check tensorboard wandb
	$(VENV)/bin/python bench/log.py
	$(VENV)/bin/python bench/scrape.py

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

$(NODE_MODULES): tests/grafana_node/package-lock.json
	@command -v npm >/dev/null || { echo "The tests of the dashboards need Node.js 20: apt-get install nodejs npm" >&2; exit 1; }
	@cd tests/grafana_node && npm ci --silent --no-audit --no-fund
	@touch $@

clean: ## remove what make made
	rm -rf $(VENV) $(CACHE) outputs tests/grafana_node/node_modules
