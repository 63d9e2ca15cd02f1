# The front doors. `make` alone shows them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements/dev.lock
RELEASE := build/release

# Where this is set, every process that a test starts compiles all of Kappa anew, and pytest all tests.
export PYTHONDONTWRITEBYTECODE :=
# More than there are cores: many tests wait for processes, time-outs and disks.
WORKERS ?= 4

.DEFAULT_GOAL := help
.PHONY: help setup demo test check docs bench chaos generate format lock lock-bench lock-release release test-packages clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | \
	  while IFS='|' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done

setup: $(READY) ## make .venv with everything locked; quick when nothing changed

$(READY): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Kappa needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@want=$$($(PYTHON) -c 'import sys; print(sys.version_info[:2])'); \
	 have=$$($(BIN)/python -c 'import sys; print(sys.version_info[:2])' 2>/dev/null || true); \
	 [ "$$want" = "$$have" ] || { echo "creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "installing the locked dependencies (the first time takes a minute)"
	@# The lock is whole: resolving anew, pip would take the newest release of what is asked for with an extra.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(LOCK)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## read twelve pages into a graph, ask it three questions, stop; KEEP=1 leaves the server up
	@$(BIN)/kg demo $(if $(KEEP),--keep)

test: check $(RELEASE)/.ready ## every check and every test
	$(BIN)/pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder $(ARGS)

check: $(READY) ## lint, format, types, import contracts, rules of the event loop, documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/loop_rules.py
	$(BIN)/python tools/reference.py --check
	$(MAKE) --no-print-directory docs

docs: $(READY) ## the documentation's site, in build/site
	$(BIN)/python tools/site.py

bench: $(READY) ## the benchmarks, each beside its peer or limit
	$(BIN)/python -m benchmarks $(ARGS)

chaos: $(READY) ## faults on purpose: SEED=… repeats a run, MINUTES=… says how long (else 10,000 jobs, 200 faults)
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

generate: $(READY) ## make the blocking client out of the async one, and the reference out of the code
	$(BIN)/python tools/unasync.py
	$(BIN)/python tools/reference.py

format: $(READY) ## let ruff format and mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: ## resolve the dependencies anew (fetches uv into .venv)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-package kappa \
	  --no-annotate --custom-compile-command 'make lock' --all-extras --group dev pyproject.toml -o $(LOCK)

lock-bench: ## the same for the peers that benchmarks run
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --custom-compile-command 'make lock-bench' requirements/bench.in -o requirements/bench.lock

lock-release: ## the same for the tools of `make release`
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --custom-compile-command 'make lock-release' requirements/release.in -o requirements/release.lock

$(RELEASE)/.ready: requirements/release.lock
	@$(PYTHON) -m venv --clear $(RELEASE)
	@$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

release: check $(RELEASE)/.ready ## what a release needs to be known of: locks checked, build/sbom.json written, vulnerabilities asked for
	$(BIN)/python tools/supply_chain.py locks
	$(RELEASE)/bin/cyclonedx-py requirements $(LOCK) --output-reproducible --of JSON -o build/sbom.json
	$(BIN)/python tools/supply_chain.py audit $(LOCK) --pip-audit $(RELEASE)/bin/pip-audit

test-packages: ## what only tests need, from apt (as root)
	@for p in pgbouncer faketime curl podman runc bwrap:bubblewrap busybox:busybox-static systemd-analyze:systemd chromium; do \
	   command -v $${p%%:*} >/dev/null || missing="$$missing $${p##*:}"; done; \
	 [ -z "$$missing" ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; }

clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
