# `make quickstart` and `make test` each do all the set-up from a fresh clone.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test test-all check docs site wheel mutants fuzz clean

quickstart: .venv/ready
	$(BIN)/completedp quickstart

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

# Those that take ten seconds each, too: examples, benches, killed clusters.
test-all: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Pages made from the code: the rules from their table, the architecture's graph from the imports,
# tables from measurements (benchmarks/data, docs/results), the figures' table from their
# definitions, the API from docstrings, the README's plan from its code, examples from their files.
# Tests keep them equal.
docs: .venv/ready
	$(BIN)/completedp rules --markdown > docs/rules.md
	$(BIN)/python scripts/import_graph.py
	$(BIN)/python scripts/data_tables.py
	$(BIN)/python scripts/results_table.py
	$(BIN)/python scripts/figures_table.py
	$(BIN)/python scripts/api_page.py
	$(BIN)/python scripts/readme_plan.py
	$(BIN)/python scripts/example_files.py

# The pages as a site, in site/: open site/index.html. Reading it needs no network.
site: .venv/ready docs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-site.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The wheel, installed into a bare environment and tried there: make wheel PYTHON=python3.13.
wheel: .venv/ready
	$(BIN)/python -m hatchling build -t wheel -d dist
	$(BIN)/python scripts/try_wheel.py --python $(PYTHON)

# Single errors planted in a copy of the core, and whether the tests see them.
mutants: .venv/ready
	$(BIN)/python scripts/mutants.py

# Damaged files and odd command lines: make fuzz COUNT=100000 SEED=7.
COUNT ?= 10000
SEED ?= 0
fuzz: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python scripts/fuzz.py all --count $(COUNT) --seed $(SEED)

.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		(echo "completedp needs Python 3.11 or newer: make PYTHON=python3.11 ..." && exit 1)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	# References that tests compare with, without requirements that the tests do not import.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps mup==1.0.0 \
		torchtitan==0.3.0 spmd_types==0.2.3 torch_checkpointing==0.1.1
	touch $@

clean:
	rm -rf .venv runs site dist .pytest_cache .hypothesis .ruff_cache .mutants.json
