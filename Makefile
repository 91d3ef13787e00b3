# Everything runs in .venv, which the first target that needs it makes; nothing has to be done before.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
READY := .venv/.ready
PAYLOADS := tests/payloads/node_modules/.ready
VENDORS := .cache/vendors/.ready
PINS := requirements/test.txt requirements/check.txt

# Without a home to write to, the tools keep what they fetch here.
ifeq ($(shell test -w "$${HOME:-/nonexistent}" && echo yes),)
export UV_CACHE_DIR := $(CURDIR)/.cache/uv
export npm_config_cache := $(CURDIR)/.cache/npm
endif

.PHONY: help setup demo test test-clients test-opencode check lint format fuzz vendors bench requirements clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo "  ARGS=… is passed on, WORKERS=… sets how many processes test, PYTHON=… chooses the interpreter."

setup: $(READY) ## Make .venv from the pinned requirements; done anew only when they change

demo: $(READY) ## Watch a delivery survive two kills on its way to done (ARGS=duo, ARGS=ci: the other demos)
	@$(BIN)/postroom demo $(ARGS)

test: $(READY) $(PAYLOADS) tmux ## Run the tests on both engines
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --inline-snapshot=disable $(ARGS)
	@echo "The tests against the clients' own programs were not run: make test-clients fetches them and runs the tests."

test-clients: $(READY) ## Fetch opencode, Claude Code and Codex (350 MB each) and run the tests against them
	@command -v npm >/dev/null 2>&1 || { \
	  echo "The clients' own programs come as npm packages: Node.js and npm are missing." >&2; \
	  echo "On Debian and Ubuntu: apt-get install nodejs npm." >&2; exit 1; }
	@$(BIN)/python -m tests.opencode.real
	@$(BIN)/python -m tests.clients.real
	@$(BIN)/python -m tests.opencode.offline $(BIN)/python -m pytest -m "opencode or clients" tests/opencode tests/clients \
	  --inline-snapshot=disable $(ARGS)

test-opencode: test-clients

check: lint test ## Run lint, then the tests

lint: $(READY) ## Check format, style, types and the direction of imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY) ## Format the code and mend what can be mended by itself
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

fuzz: $(READY) ## Fuzz the hooks' door for a minute on each engine (ARGS="--seconds 600" for longer)
	@$(BIN)/python -m tests.fuzz $(ARGS)

vendors: $(READY) $(VENDORS) ## Hold the signatures against the vendors' own libraries, the heavy ones too
	@PYTHONPATH=.cache/vendors $(BIN)/python -m tests.vendors $(ARGS)

bench: $(READY) ## Measure against the raw drivers, and print the ratios
	@$(BIN)/python -m bench $(ARGS)

COMPILE = UV_CUSTOM_COMPILE_COMMAND="make requirements" "$$uv" pip compile --quiet --universal --generate-hashes \
	--python-version 3.11 --no-emit-index-url --no-emit-find-links --no-annotate $(ARGS)

requirements: $(READY) ## Pin the dependencies of pyproject.toml anew (ARGS=--upgrade for the newest)
	@set -e; uv="$$(command -v uv || echo $(BIN)/uv)"; \
	$(COMPILE) pyproject.toml -o requirements/runtime.txt; \
	$(COMPILE) pyproject.toml --group test -c requirements/runtime.txt -o requirements/test.txt; \
	$(COMPILE) --group check -c requirements/test.txt -o requirements/check.txt; \
	$(COMPILE) --group vendors -c requirements/test.txt -o requirements/vendors.txt; \
	$(COMPILE) --group uv -o requirements/uv.txt

clean: ## Remove what was made here, .venv included
	@rm -rf .venv .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dist tests/payloads/node_modules
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# With uv on the path it is used; without, Python's own venv and pip bring the pinned one. The system's certificates are
# trusted where there are any, since a network may stand behind a proxy with its own.
$(READY): pyproject.toml $(PINS) requirements/uv.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Postroom needs Python 3.11 or newer, and $(PYTHON) is $$("$(PYTHON)" --version 2>/dev/null || echo missing)." >&2; \
	  echo "Install it, or name another interpreter: make PYTHON=python3.12 …" >&2; exit 1; }
	@set -e; pins="$(PINS)"; \
	if [ -e /etc/ssl/certs/ca-certificates.crt ]; then export UV_SYSTEM_CERTS=true; fi; \
	if uv="$$(command -v uv)"; then \
	  "$(BIN)/python" -c "" 2>/dev/null || { rm -rf .venv; uv venv --quiet --python "$$(command -v "$(PYTHON)")" .venv; }; \
	else \
	  uv="$(BIN)/uv"; pins="$$pins requirements/uv.txt"; \
	  "$(BIN)/python" -c "" 2>/dev/null && "$$uv" --version >/dev/null 2>&1 || { \
	    "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	      echo "$(PYTHON) cannot make a virtual environment: its venv and ensurepip are missing." >&2; \
	      echo "On Debian and Ubuntu: apt-get install python3-venv. Or install uv and run make again." >&2; exit 1; }; \
	    rm -rf .venv; "$(PYTHON)" -m venv .venv; \
	    "$(BIN)/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt; }; \
	fi; \
	echo "Setting up .venv from the pinned requirements"; \
	"$$uv" pip sync --compile-bytecode --quiet --python "$(BIN)/python" --require-hashes $$pins; \
	"$$uv" pip install --quiet --python "$(BIN)/python" --no-deps --no-build-isolation --editable .
	@touch $@

# They stay out of .venv, which every checkout pays for: Stripe's library alone is 1,600 files.
$(VENDORS): requirements/vendors.txt | $(READY)
	@uv="$$(command -v uv || echo $(BIN)/uv)"; rm -rf .cache/vendors; \
	"$$uv" pip install --quiet --python "$(BIN)/python" --target .cache/vendors --no-deps --require-hashes -r $<
	@touch $@

.PHONY: tmux
tmux:
	@command -v tmux >/dev/null 2>&1 || { \
	  echo "The tests write into real terminals: tmux is missing." >&2; \
	  echo "On Debian and Ubuntu: apt-get install tmux." >&2; exit 1; }

# The webhook payloads that the tests post are real ones, which their publisher gives as an npm package.
$(PAYLOADS): tests/payloads/package.json tests/payloads/package-lock.json
	@command -v npm >/dev/null 2>&1 || { \
	  echo "The tests post real webhook payloads, which come as an npm package: Node.js and npm are missing." >&2; \
	  echo "On Debian and Ubuntu: apt-get install nodejs npm." >&2; exit 1; }
	@cd tests/payloads && npm ci --ignore-scripts --no-update-notifier --no-audit --no-fund --loglevel=error >/dev/null
	@touch $@
