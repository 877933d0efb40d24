# From nothing: python3 (3.11 or newer), make and the package registries. `make help` lists what there is.

PYTHON ?= python3
VENV ?= .venv
PROVIDER ?= redis
SEEDS ?= 20000
# How often a pair of operations switches between them, in each of all its schedules.
SWITCHES ?= 1
BIN := $(VENV)/bin
comma := ,
DYNALITE := .dynalite
NPM_CI = npm ci --prefix $(DYNALITE) --ignore-scripts --no-audit --no-fund --loglevel=error \
  --fetch-timeout=60000 --fetch-retries=1 --fetch-retry-mintimeout=1000
REDIS := .redis
DEBS := redis-server redis-tools libjemalloc2 liblzf1
APT = apt-get -qq -o APT::Sandbox::User=root
DOWNLOAD = $(APT) download $(DEBS)
# For a machine that has no lists of packages, or whose user may not write them.
OWN_LISTS = $(APT) -o Dir::State::Lists=$(abspath $(REDIS))/lists
SAM := .sam
CDK := .cdk
RUNTIME := 3.13
CODE := $(wildcard layer tests benchmarks)
FUNCTIONS := $(patsubst %/,%,$(sort $(dir $(wildcard functions/*/*.py))))
# Two more than there are processors: many tests wait for a process, a lease's end or a network that fails.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder
# Here the same lines run thousands of times: to measure them would take as long as all tests do.
REPEATED := $(addprefix tests/,conformance end_to_end crashes faults simulation interleavings linearizability lifecycle)
OTHERS := $(filter-out $(REPEATED),$(patsubst %/,%,$(dir $(wildcard tests/*/__init__.py))))
# Of the first folders, the files that are measured all the same.
MEASURED := $(OTHERS) tests/conformance/test_memory.py tests/faults/test_proxy.py
SOAKING := $(shell grep -rl 'tests.budgets import' tests --include='test_*.py') $(addprefix tests/,faults crashes end_to_end)
TEMPLATE := $(wildcard template.yaml)
# A replay needs a few packages; only DynamoDB's needs moto. `make setup` installs these and what the tests need.
DEMO := $(if $(filter dynamodb,$(PROVIDER)),local,demo)

# A pip configuration of the machine's may name constraints of its own; the environment wins over it, so ours hold.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where this is set, each of the tests' many processes compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip

# In `found`: an interpreter of that release, on PATH or of pyenv's; empty where there is none.
find_python = found=; for python in python$(1) "$$HOME"/.pyenv/versions/$(1).*/bin/python; do \
  if "$$python" -c '' 2>/dev/null; then found=$$python; break; fi; done

.DEFAULT_GOAL := help
.PHONY: help setup sam demo dist cdk scale docs test coverage bench lint format test-all mutants soak sim interleavings pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.installed $(DYNALITE)/.installed $(REDIS)/.installed ## make .venv with the pinned packages, once

sam: $(SAM)/.installed ## make what building and running the application as Lambda would takes, once

demo: $(VENV)/.$(DEMO) ## replay a burst of chat messages (PROVIDER=redis, dynamodb or memory)
	$(BIN)/incumbent replay events/scenarios/chat-burst.json --provider $(PROVIDER)

test: setup sam ## every test
	$(PYTEST) $(REPEATED) $(OTHERS)
	@if [ -f $(SAM)/size ]; then cat $(SAM)/size; fi

dist: $(VENV)/.installed ## build wheel, sdist and the layer's zip into dist/, check them, and try each in a fresh environment
	$(BIN)/python -m tests.build.dist dist

cdk: $(VENV)/.installed $(CDK)/.installed ## synthesise the CDK's snippet of docs/table.md, and compare it with the table
	$(BIN)/python -m tests.build.cdk $(CDK)/bin/python

coverage: setup sam ## the lines that tests run, and those that none does
	$(PYTEST) $(MEASURED) --cov --cov-report=term

bench: setup ## measure what runs and cold starts cost, beside others, into docs/performance.md (SECTIONS=redis: print)
	$(PIP) install -qq --no-build-isolation -e '.[bench]'
	$(BIN)/python -m benchmarks $(SECTIONS)

scale: $(VENV)/.installed ## simulate hot keys, many keys and slow shards into docs/scaling.md (TABLES="hot many": only these)
	$(BIN)/python -m benchmarks.scale $(TABLES)

docs: $(VENV)/.installed ## build the documentation site into site/; a broken link fails
	$(PIP) install -qq --no-build-isolation -e '.[docs]'
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs site

lint: $(VENV)/.installed ## style, types, the direction of imports, the template
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)
	$(foreach function,$(FUNCTIONS),MYPYPATH=$(function) $(BIN)/mypy $(function) &&) true
	$(BIN)/lint-imports
	$(if $(TEMPLATE),$(BIN)/cfn-lint $(TEMPLATE))

format: $(VENV)/.installed ## put the code into its one format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

test-all: test ## the tests on Python 3.12 and 3.13 too, where they are found
	@for version in 3.12 3.13; do \
	  $(call find_python,$$version); \
	  if [ -z "$$found" ]; then echo "Python $$version is not here: left out."; continue; fi; \
	  $(MAKE) --no-print-directory test PYTHON="$$found" VENV=.venv-$$version || exit 1; \
	done

mutants: setup ## break the code in each listed way, or with SEED=7 COUNT=100 at random, and see which test notices
	$(BIN)/python -m tests.mutants $(if $(SEED)$(COUNT),--seed $(or $(SEED),1) --count $(or $(COUNT),100))

soak: setup ## the tests that could go on for ever, for longer than `make test` does, with counts; and on moto, which is slow
	SOAK=1 $(PYTEST) -rP $(SOAKING)

interleavings: $(VENV)/.installed ## put operations between one another's requests: all pairs, and drawn triples (SEEDS=20000)
	$(BIN)/python -m tests.interleavings --store memory --seeds $(SEEDS)
	$(BIN)/python -m tests.interleavings --store valkey --every 20 --seeds 1000
	$(BIN)/python -m tests.interleavings --switches $(SWITCHES) --seeds $(SEEDS)

sim: $(VENV)/.installed ## carry out schedules of the simulation (SEEDS=20000)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

pins: ## make constraints.txt, and those of SAM CLI and the CDK, anew from the newest releases
	rm -rf .venv-pins
	$(PYTHON) -m venv .venv-pins
	PIP_CONSTRAINT= .venv-pins/bin/python -m pip install -qq hatchling editables
	PIP_CONSTRAINT= .venv-pins/bin/python -m pip install -qq --no-build-isolation -e '.[local,dev,docs,bench]'
	head -n 1 constraints.txt > constraints.new
	PIP_CONSTRAINT= .venv-pins/bin/python -m pip freeze --exclude-editable >> constraints.new
	mv constraints.new constraints.txt
	@$(call find_python,$(RUNTIME)); "$${found:?no Python $(RUNTIME) here}" -m venv .venv-sam
	PIP_CONSTRAINT= .venv-sam/bin/python -m pip install -qq aws-sam-cli
	head -n 1 tests/sam/requirements.txt > constraints.new
	PIP_CONSTRAINT= .venv-sam/bin/python -m pip freeze >> constraints.new
	mv constraints.new tests/sam/requirements.txt
	$(PYTHON) -m venv .venv-cdk
	PIP_CONSTRAINT= .venv-cdk/bin/python -m pip install -qq aws-cdk-lib
	head -n 1 tests/cdk/requirements.txt > constraints.new
	PIP_CONSTRAINT= .venv-cdk/bin/python -m pip freeze >> constraints.new
	mv constraints.new tests/cdk/requirements.txt
	rm -rf .venv-pins .venv-sam .venv-cdk

clean: ## remove what the other targets made
	rm -rf .venv .venv-3.* dist site $(DYNALITE) $(REDIS) $(SAM) $(CDK) .aws-sam .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

# $(call install,extras): the package with these extras. The stamps come last, so that an installation that was cut off
# is made again.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is missing or older than 3.11: say make PYTHON=/path/to/a/newer/python3" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -qq hatchling editables
	$(PIP) install -qq --no-build-isolation -e '.[$(1)]'
endef

$(VENV)/.demo: pyproject.toml constraints.txt
	@echo "installing what the demo needs into $(VENV): less than a minute"
	$(call install,demo)
	@touch $@

$(VENV)/.local: pyproject.toml constraints.txt
	@echo "installing what the demo on DynamoDB needs into $(VENV): about a minute"
	$(call install,local)
	@touch $(VENV)/.demo $@

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV): a few minutes the first time"
	$(call install,local$(comma)dev)
	@touch $(VENV)/.demo $(VENV)/.local $@

$(DYNALITE)/.installed: tests/dynalite/package.json tests/dynalite/package-lock.json
	@mkdir -p $(DYNALITE)
	@if ! command -v npm >/dev/null; then \
	  echo "npm is not here: the tests leave dynalite out, the second implementation of DynamoDB."; \
	elif cp $^ $(DYNALITE)/ && $(NPM_CI); then \
	  touch $@; \
	else \
	  rm -rf $(DYNALITE)/node_modules; \
	  echo "npm could not install dynalite: the tests leave it out, the second implementation of DynamoDB."; \
	fi

# Debian's Redis has TLS, which the embedded Valkey has not. Its packages are unpacked here, and not installed.
$(REDIS)/.installed:
	@rm -rf $(REDIS) && mkdir -p $(REDIS)/lists/partial
	@if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then \
	  echo "apt-get is not here: the tests leave out Redis with TLS, unless redis-server is on PATH."; \
	elif ( cd $(REDIS) && \
	    { $(DOWNLOAD) 2>/dev/null || { $(OWN_LISTS) update && $(OWN_LISTS) download $(DEBS); }; } && \
	    for package in *.deb; do dpkg -x "$$package" . || exit 1; done && \
	    LD_LIBRARY_PATH="$$(echo "$$PWD"/usr/lib/*-linux-gnu)" usr/bin/redis-server --version >/dev/null && \
	    rm -rf -- *.deb lists && touch .installed ); then :; \
	else \
	  rm -rf $(REDIS); \
	  echo "apt-get could not fetch Debian's redis-server: the tests leave out Redis with TLS."; \
	fi

# Two environments: SAM CLI's, whose python is the one that `sam build` looks for; and one as bare as Lambda's runtime,
# with its client and boto3, in which nothing of ours can be found by accident.
$(SAM)/.installed: tests/sam/requirements.txt constraints.txt
	@mkdir -p $(SAM)
	@$(call find_python,$(RUNTIME)); \
	if [ -z "$$found" ]; then \
	  echo "Python $(RUNTIME) is not here: the tests leave out what sam build makes."; \
	else \
	  rm -rf $(SAM)/cli $(SAM)/runtime && "$$found" -m venv $(SAM)/cli && "$$found" -m venv $(SAM)/runtime && \
	  PIP_CONSTRAINT=$(CURDIR)/$< $(SAM)/cli/bin/python -m pip install -qq --no-compile -r $< && \
	  $(SAM)/runtime/bin/python -m pip install -qq awslambdaric boto3 && \
	  touch $@; \
	fi

# The CDK's library runs on node, which jsii starts.
$(CDK)/.installed: tests/cdk/requirements.txt
	@command -v node >/dev/null || { echo "node is not here, and the CDK's library needs it" >&2; exit 1; }
	@echo "installing the CDK's library into $(CDK): 460 MB, about a minute"
	@rm -rf $(CDK) && $(PYTHON) -m venv $(CDK)
	PIP_CONSTRAINT=$(CURDIR)/$< $(CDK)/bin/python -m pip install -qq -r $<
	@touch $@
