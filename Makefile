# One vocabulary for people and CI. Needs python3 >= 3.11 (PYTHON=... for another one) and pip; all else comes here.

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
PINS   := pyproject.toml constraints.txt
RESULTS ?= results/azure-conversation
PYTEST_ARGS ?= --numprocesses 2 --dist loadfile

.PHONY: demo test check fuzz bench studies readme clean help

help:
	@echo "make demo    simulate a real trace's shape under paged and contiguous KV caches (no torch, no GPU)"
	@echo "make test    all tests"
	@echo "make check   format, lint, types, import directions, README tables"
	@echo "make fuzz    a minute of coverage-guided fuzzing of every reader (SECONDS=600 for longer; Linux, Python <= 3.13)"
	@echo "make bench   measure, and write benchmarks/results/*.json"
	@echo "make studies remake the published studies in reports/"
	@echo "make readme  rewrite README.md's tables and picture from what was measured"

demo: $(VENV)/.base
	$(VENV)/bin/kvplan simulate workloads/azure-conversation.yaml --output $(RESULTS)

test: $(VENV)/.test
	$(PY) -m pytest $(PYTEST_ARGS)

check: $(VENV)/.check
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) scripts/readme_tables.py --check

SECONDS ?= 60

fuzz: $(VENV)/.fuzz
	$(PY) tests/fuzz/readers.py -max_total_time=$(SECONDS)

BENCHMARKS ?= accuracy simulate_speed read_and_report_speed

bench: $(VENV)/.test
	@for name in $(BENCHMARKS); do echo "== $$name"; $(PY) benchmarks/$$name.py || exit 1; done
	$(PY) scripts/readme_tables.py

studies: $(VENV)/.base
	$(PY) reports/remake.py

readme: $(VENV)/.base
	$(PY) scripts/readme_tables.py
	$(PY) scripts/readme_picture.py

clean:
	rm -rf $(VENV) results .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# A stamp a set of packages: a second run costs nothing, an edit of the pins installs again.
$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvplan needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.base: $(VENV)/.venv $(PINS)
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.base $(PINS)
	$(PIP) --editable '.[engine,test]'
	@touch $@

$(VENV)/.fuzz: $(VENV)/.base $(PINS)
	$(PIP) --editable '.[fuzz]'
	@touch $@

$(VENV)/.check: $(VENV)/.test $(PINS)
	$(PIP) --editable '.[check]'
	@touch $@
