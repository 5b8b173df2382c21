# `make demo` and `make test` need nothing but Python 3.11+ and pip; they set up .venv themselves.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
BIN := .venv/bin
STAMP := .venv/warmtier-setup.json
PATHS := src tests benchmarks scripts
# Numerical libraries share the cores with the servers under test.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export VLLM_NO_USAGE_STATS ?= 1

.PHONY: setup servers lint format type layers ratchet test test-fast demo fuzz soak bench docs clean
.DELETE_ON_ERROR:

setup:  ## make .venv and the demo model
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer with venv was found" >&2; \
	  echo "  fix: install one, or say which: make setup PYTHON=/path/to/python3.11" >&2; exit 3; }
	@$(PYTHON) scripts/setup_env.py

servers:  ## real servers for the tests of far stores (Debian packages, needs root); without them those tests skip
	apt-get install -y --no-install-recommends $$(grep -v '^#' requirements/servers.apt)

lint: setup  ## style
	$(BIN)/ruff check $(PATHS)
	$(BIN)/ruff format --check $(PATHS)

format:  ## rewrite to style
	$(BIN)/ruff check --fix $(PATHS)
	$(BIN)/ruff format $(PATHS)

type: setup  ## types, strict
	$(BIN)/mypy

layers: setup  ## who may import whom
	$(BIN)/lint-imports --no-cache

test: lint type layers  ## everything; the last line is pytest's summary
	$(BIN)/python -m pytest

test-fast: setup  ## without real servers and slow tests
	$(BIN)/python -m pytest -m "not vllm and not slow"

demo: setup  ## the experiment on a real server; writes demo/result.json and demo/report.html
	$(BIN)/warmtier demo --directory demo

fuzz: setup  ## ten thousand schedules of faults and the state machines, with many more examples; HYPOTHESIS_EXAMPLES=n
	$(BIN)/python scripts/fuzz_tiering.py --schedules $${SCHEDULES:-10000}
	WARMTIER_FUZZ_EXAMPLES=$${HYPOTHESIS_EXAMPLES:-2000} $(BIN)/python -m pytest -m "not vllm" -k "machine or fuzz or stateful" --timeout=3600

soak: setup  ## faults in every tier under load; SOAK_SECONDS=n
	WARMTIER_SOAK_SECONDS=$${SOAK_SECONDS:-600} $(BIN)/python -m pytest -m vllm -k soak --timeout=3600

bench: setup  ## every benchmark, quickly
	@for file in benchmarks/*.py; do case $$file in */common.py) ;; *) echo "== $$file"; \
	  $(BIN)/python $$file --quick || exit 1;; esac; done

docs: setup  ## regenerate the reference pages
	$(BIN)/python scripts/generate_reference.py

clean:  ## everything that was generated but the environment and the model
	rm -rf demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks scripts -name __pycache__ -type d -exec rm -rf {} +
