# Needs python3 (>= 3.11, with venv and pip) and make; everything else is installed here, hash-pinned, below .venv*.
PYTHON ?= python3
VENV ?= .venv
CONFIG ?= examples/quickstart/lineside.toml
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
LOAD_ROUNDS ?= 3

PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
IMAGE := build/lineside.binpb
STAGE = $(PYTHON) scripts/stage.py
TYPED := client/python/lineside service/lineside_service tests examples scripts
LINTS := lint-style lint-types lint-layers lint-protos lint-files

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo run test lint proto contract client-go client-node client-java baseline bench load overload collector trace metrics toolchains figures soak lock clean $(LINTS)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## install everything, hash-pinned, into .venv

demo: setup ## run 200 agent conversations with faults (DEMO_ARGS=--help)
	@PYTHONPATH=examples $(PY) -m conversations $(DEMO_ARGS)

run: setup ## serve the quickstart's tools (CONFIG=file.toml: yours)
	@$(VENV)/bin/lineside-service serve --config $(CONFIG)

test: ## lint and every test (PYTEST_ARGS="tests/core -k retry": some)
	@$(STAGE) setup $(MAKE) --no-print-directory setup .venv-client-min/.installed
	@$(STAGE) lint $(MAKE) --no-print-directory lint
	@$(STAGE) tests $(PY) -m pytest $(PYTEST_ARGS)

lint: setup .venv-proto/.installed ## style, types, import rules, protos, stubs, locks
	@$(MAKE) --no-print-directory --keep-going $(LINTS)

lint-style:
	@echo "ruff: style"
	@$(VENV)/bin/ruff check --quiet
	@$(VENV)/bin/ruff format --quiet --check --diff

lint-types:
	@echo "mypy: types"
	@$(VENV)/bin/mypy --no-error-summary $(wildcard $(TYPED))

lint-layers:
	@echo "import-linter: who may import whom"
	@$(VENV)/bin/lint-imports --no-cache > build/layers.txt || { cat build/layers.txt; exit 1; }

lint-protos:
	@echo "protoc, buf: stubs current, format, style, nothing breaks"
	@.venv-proto/bin/python scripts/stubs.py check
	@$(VENV)/bin/buf format --diff --exit-code protos
	@$(VENV)/bin/buf lint $(IMAGE) --config buf.yaml
	@$(VENV)/bin/buf breaking $(IMAGE) --against protos/baseline.binpb --config buf.yaml

lint-files:
	@echo "locks current, no registry hosts"
	@$(PY) scripts/locks.py check
	@$(PY) scripts/hosts.py

proto: setup .venv-proto/.installed ## regenerate the Python stubs from protos/
	@$(VENV)/bin/buf format --write protos
	@.venv-proto/bin/python scripts/stubs.py write

contract: setup ## the contract in every language that is installed, and by grpcurl
	@$(PY) -m pytest tests/contract -q $(PYTEST_ARGS)

client-go: setup .venv-proto/.installed ## regenerate Go's stubs and test its client
	@$(PYTHON) scripts/toolchains.py protoc-gen-go protoc-gen-go-grpc
	@.venv-proto/bin/python scripts/stubs.py write-go
	@cd client/go && unformatted="$$(gofmt -l .)" && if [ -n "$$unformatted" ]; then echo "gofmt -w: $$unformatted"; exit 1; fi
	@cd client/go && go vet ./... && go test ./...

client-node: setup client/node/dist/.built ## build the Node client and test it
	@cd client/node && npm test --silent

client-java: setup ## build the Java client and test it
	@$(PYTHON) scripts/java_client.py test

baseline: .venv-proto/.installed ## accept today's protos as what must not break (at a release)
	@.venv-proto/bin/python scripts/stubs.py baseline

bench: setup ## what it costs, in process and on the wire; writes build/bench.json
	@$(PYTHON) scripts/toolchains.py loaddriver
	@$(PY) tests/load/bench.py $(BENCH_ARGS)

load: setup ## ghz against the service and a bare echo (LOAD_ROUNDS=1: quick)
	@$(PYTHON) scripts/toolchains.py ghz
	@$(PY) tests/load/load.py $(LOAD_ROUNDS)

overload: setup ## ten times what the service can take, for five minutes
	@$(PYTHON) scripts/toolchains.py loaddriver
	@$(PY) tests/load/overload.py 300

collector: setup ## a slow or dead OTLP collector, and what callers notice of it
	@$(PYTHON) scripts/toolchains.py loaddriver
	@$(PY) tests/load/collector.py 15 5

trace: setup ## a story told to a real Jaeger, and checked there (KEEP=1: it stays)
	@$(PYTHON) scripts/toolchains.py jaeger tracecaller
	@$(PY) tests/trace/trace.py $(if $(KEEP),--keep)

metrics: setup ## a real Prometheus: rules tested, dashboard and alerts have data
	@$(PYTHON) scripts/toolchains.py prometheus
	@$(PY) -m pytest tests/deploy -q

toolchains: ## build the pinned Go tools into build/bin, if missing
	@$(PYTHON) scripts/toolchains.py

figures: setup ## hold the process to its figures; writes build/figures.json
	@$(PY) -m pytest tests/reliability -q --figures build/figures.json $(PYTEST_ARGS)

soak: setup .venv-client-min/.installed ## the long forms: more seeds, more examples, longer runs
	@LINESIDE_SOAK=1 $(PY) -m pytest tests -m "soak or hypothesis" --timeout=3600 -o faulthandler_timeout=3590 $(PYTEST_ARGS)

lock: $(VENV)/.uv ## resolve the locks in requirements/ anew (needs the index)
	@$(PY) scripts/locks.py make

clean: ## remove everything that make made
	rm -rf build .venv .venv-proto .venv-client-min .hypothesis .ruff_cache
	rm -rf client/node/node_modules client/node/dist client/node/src/gen
	rm -f examples/quickstart/lineside.db*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- virtual environments: a stamp inside each says which lock it holds --------------------------------------------

$(VENV)/.uv: requirements/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python >= 3.11 is needed, {sys.executable} is older: make PYTHON=python3.12")'
	@echo "installing the installer into $(VENV)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/uv.txt
	@mkdir -p build && touch $@

$(VENV)/.installed: $(VENV)/.uv requirements/dev.txt requirements/corpus.txt pyproject.toml service/pyproject.toml
	@echo "installing locked packages into $(VENV)"
	@$(UV) pip sync --quiet --compile-bytecode --python $(PY) --require-hashes requirements/uv.txt requirements/dev.txt requirements/corpus.txt
	@$(UV) pip install --quiet --python $(PY) --offline --no-deps --no-build-isolation --editable . --editable service
	@mkdir -p build && touch $@

.venv-%/.installed: requirements/%.txt $(VENV)/.uv
	@echo "installing locked packages into .venv-$*"
	@test -x .venv-$*/bin/python || $(PYTHON) -m venv --without-pip .venv-$*
	@$(UV) pip sync --quiet --python .venv-$*/bin/python --require-hashes $<
	@touch $@

# --- the Node client: packages anew when its lock changed, built anew when it or the protos changed -----------------

NODE_SOURCES := $(wildcard client/node/*.json client/node/*/*.ts protos/lineside/v1/*.proto) scripts/stubs.py

client/node/node_modules/.installed: client/node/package-lock.json client/node/.npmrc
	@echo "installing locked packages into client/node/node_modules"
	@cd client/node && npm ci --silent
	@touch $@

client/node/dist/.built: client/node/node_modules/.installed .venv-proto/.installed $(NODE_SOURCES)
	@echo "building client/node"
	@cd client/node && npm run --silent build
	@touch $@
