# Everything that people and CI do here. `make help` lists the targets.
# On a fresh Debian machine, as root: `make test`. Without root: `make check` and `make test-unit`.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first Python that is new enough; only for making the virtual environment.
PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do \
	if $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$each; break; fi; done)
BIN := .venv/bin
NAME ?= dev
SUITE ?= forky
SUITES ?= forky
ALL_SUITES := bookworm,trixie,forky
SOAK ?= 600
CLONES ?= 200
RIG_TESTS := tests/integration tests/conformance
# Two processes share out the files of RIG_TESTS, each with a node of its own: tests wait more than they work.
RIG_PYTEST = -n $(RIG_WORKERS) --dist loadfile $(RIG_TESTS)
RIG_WORKERS ?= 2
# Extra words for pytest: make test PYTEST_ARGS="-k pull -x". They may leave one of two runs without a test.
PYTEST_ARGS ?=
# Where `make install` puts things, and from where it takes wheels (nothing is fetched when they are there).
DESTDIR ?= /
PREFIX ?= /usr
SYSCONFDIR ?= /etc
WHEELS ?= dist/wheels
INSTALL_PYTHON ?= /usr/bin/python3
INSTALLED := --destdir "$(DESTDIR)" --prefix "$(PREFIX)" --sysconfdir "$(SYSCONFDIR)"
NONE_IS_FINE = $(if $(PYTEST_ARGS),|| test $$? = 5)

.PHONY: help python bootstrap venv check test test-unit test-matrix soak rig-up rig-shell rig-down rig-status rig-clean \
	stubs bench demo clean wheels install uninstall

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later was found; on Debian: apt-get install python3" >&2; exit 2; }

bootstrap: python ## packages, virtual environment, registry and the roots of SUITES
	@$(PYTHON) tests/rig/bootstrap.py --suites "$(SUITES)" $(BROWSER)

venv: python ## the virtual environment alone; needs no root
	@$(PYTHON) tests/rig/bootstrap.py --only-venv

check: venv ## lint, format, types, layers, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests bench deploy images/node systemd
	$(BIN)/lint-imports
	$(BIN)/python cri_stubs/generate.py --check
	$(BIN)/python -m stokerd.settings_reference --check docs/configuration.md
	$(BIN)/python -m stoker_coordinator.settings_reference --check docs/coordinator-configuration.md
	$(BIN)/python -m stoker_coordinator.objects_reference --check docs/objects.md

test test-matrix: BROWSER := --browser
test: SUITES := forky
test: python ## all tests, nodes of forky (needs root)
	@$(PYTHON) tests/rig/bootstrap.py --suites ""
	@# Roots are made while the unit tests run, which need none.
	trap wait EXIT; $(PYTHON) tests/rig/bootstrap.py --suites "$(SUITES)" $(BROWSER) & \
	$(BIN)/python -m pytest tests/unit -n auto $(PYTEST_ARGS) $(NONE_IS_FINE); wait $$!
	STOKER_SUITES=forky $(BIN)/python -m pytest $(RIG_PYTEST) $(PYTEST_ARGS) $(NONE_IS_FINE)

test-unit: venv ## the tests that need neither root nor a rig
	$(BIN)/python -m pytest tests/unit -n auto $(PYTEST_ARGS)

test-matrix: SUITES := $(ALL_SUITES)
test-matrix: bootstrap ## integration and conformance on containerd 1.6, 1.7 and 2.1 (needs root)
	STOKER_SUITES=$(ALL_SUITES) $(BIN)/python -m pytest $(RIG_PYTEST) $(PYTEST_ARGS)

soak: SUITES := $(SUITE)
soak: bootstrap ## ten minutes of kill -9 during recreations, and 200 clones: SUITE=forky SOAK=600 CLONES=200
	STOKER_SUITES=$(SUITE) STOKER_SOAK_SECONDS=$(SOAK) $(BIN)/python -m pytest tests/integration/test_recreate_kill.py
	STOKER_SUITES=$(SUITE) STOKER_LEAK_CLONES=$(CLONES) $(BIN)/python -m pytest tests/integration/test_leaks.py

rig-up: SUITES := $(SUITE)
rig-up: bootstrap ## start a registry and a node and leave them running: NAME=dev SUITE=forky
	@$(BIN)/python -m tests.rig up --name "$(NAME)" --suite "$(SUITE)"

rig-shell: ## a shell in the node NAME
	@$(BIN)/python -m tests.rig shell "$(NAME)"

rig-down: ## stop the node NAME and its registry
	@$(BIN)/python -m tests.rig down "$(NAME)"

rig-status: ## list nodes and registries
	@$(BIN)/python -m tests.rig status

rig-clean: ## remove what dead runs left
	@$(BIN)/python -m tests.rig clean

stubs: bootstrap ## generate cri_stubs again
	$(BIN)/python cri_stubs/generate.py

bench: SUITES := forky
bench: bootstrap ## measure against peers: ONLY=images RUNS=5
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS))

demo: SUITES := forky
demo: bootstrap ## show the product on a real node; KEEP=1 leaves it running
	@KEEP=$(KEEP) $(BIN)/python -m deploy.demo

wheels: ## build the wheels that install needs, for machines without a network: WHEELS=dist/wheels
	@$(PYTHON) systemd/install.py wheels --wheels "$(WHEELS)" --python "$(INSTALL_PYTHON)"

install: ## programs, units and configuration: DESTDIR=/ PREFIX=/usr SYSCONFDIR=/etc WHEELS=dist/wheels [VENV=.venv]
	@$(PYTHON) systemd/install.py install $(INSTALLED) --wheels "$(WHEELS)" --python "$(INSTALL_PYTHON)" \
		$(if $(VENV),--venv "$(abspath $(VENV))")

uninstall: ## take it off again; configuration and state stay
	@$(PYTHON) systemd/install.py uninstall $(INSTALLED)

clean: ## remove caches, the virtual environment and what the rig left; keeps node roots
	if [ -x $(BIN)/python ] && [ "$$(id -u)" = 0 ]; then $(BIN)/python -m tests.rig clean; fi
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .cache/images build dist
	find . -name __pycache__ -not -path './.cache/*' -prune -exec rm -rf {} +
