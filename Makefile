.DEFAULT_GOAL := help
PYTHON ?= python3
SEEDS ?= 1
# Two test processes. The tests of a file run in the same process, so that its fixtures are made once.
WORKERS ?= -n 2 --dist loadfile --no-loadscope-reorder
BIN := .venv/bin
# Benchmarks to run: names of files in scripts/bench; empty for all.
BENCHES ?=
# Folder of the packages that benchmarks compare with, separate from .venv.
PEERS := build/bench-peers

.PHONY: help install check tables docs format test test-fast test-oldest test-mteb test-site demo demo-scratch bench bench-peers proof wheelhouse \
        release-check clean test-slurm

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: ## make .venv with the exact versions of requirements.txt (Python 3.11 or 3.12); safe to rerun
	@PYTHON=$(PYTHON) scripts/install.sh

demo: install ## refine a pretrained encoder on documentation, and compare; nine minutes on two cores (SEEDS="1 2 3" for three seeds)
	@$(BIN)/python examples/demo/refine.py --output demo --seeds $(SEEDS)

demo-scratch: install ## train two small encoders from scratch, and compare; five minutes on two cores (SEEDS="1 2 3")
	@$(BIN)/python examples/demo/scratch.py --output demo/scratch --seeds $(SEEDS)

test: install ## run all tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS)

test-fast: install ## the tests that start no training, about a minute on two cores
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) -m "not slow and not real"

test-oldest: install ## test-fast and the tests of import and export with the oldest supported packages, in build/oldest
	@$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/oldest -r requirements-oldest.txt
	@PYTHONPATH=build/oldest OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) -m "not slow and not real"
	@PYTHONPATH=build/oldest OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) tests/interop

# The folder is named site-packages because dill, which mteb's datasets use, pickles modules that are elsewhere by value.
test-mteb: install ## test that mteb scores an exported encoder, with mteb in build/mteb
	@$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/mteb/site-packages -r requirements-mteb.txt
	@PYTHONPATH=build/mteb/site-packages OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/evaluation/test_mteb.py

test-site: docs ## open the documentation in Chromium (Debian: apt-get install chromium-driver), with selenium in build/browser
	@$(BIN)/python -m pip install --quiet --upgrade --target build/browser -r requirements-site.txt
	@PYTHONPATH=build/browser $(BIN)/python -m pytest -rs tests/scripts/test_site.py

test-slurm: install ## test scripts/slurm on a temporary Slurm of this machine; needs root and Debian (apt-get)
	@if [ "$$(id -u)" -ne 0 ]; then echo "test-slurm: skipped: not root"; else OMP_NUM_THREADS=1 scripts/slurm/local_cluster.sh --install \
	  $(BIN)/python -m pytest -rs tests/scripts/test_slurm_real.py; fi

check: install ## check style, types, import directions, published tables, shell scripts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy fairseq_clear
	@$(BIN)/python -m pytest tests/test_layers.py
	@$(BIN)/python scripts/check_tables.py
	@$(BIN)/python scripts/write_tables.py --check
	@git ls-files '*.sh' '*.sbatch' scripts/slurm/bin .ci/run | xargs $(BIN)/shellcheck

tables: install ## write the tables that docs/*.md take from the code
	@$(BIN)/python scripts/write_tables.py

docs: install ## build the documentation site, build/site/index.html; a broken link is an error
	@scripts/docs.sh

format: install ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: install ## measure speed compared with other libraries: build/bench.json (BENCHES="views encode" for some)
	@$(BIN)/python -W ignore scripts/bench $(BENCHES) --output build/bench --peers $(PEERS)

bench-peers: install ## install the packages that bench compares with
	@$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(PEERS) -r scripts/bench/requirements.txt
	@command -v spm_encode >/dev/null || echo "bench-peers: spm_encode is not installed (Debian: apt-get install sentencepiece)"

# The folder is named site-packages for dill, as that of test-mteb.
proof: install bench-peers ## measure the tables of docs/correctness.md: ours and other libraries, ten minutes on two cores
	@$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/proof/site-packages -r examples/proof/requirements.txt
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore examples/proof/correctness.py --peers $(PEERS) build/proof/site-packages

wheelhouse: install ## make wheels of all packages except torch and numpy, for a machine without a network
	@scripts/wheelhouse.sh wheelhouse

release-check: ## build sdist and wheel in dist, install the wheel in an empty environment, and run README's first training run from it
	@PYTHON=$(PYTHON) scripts/release_check.sh

clean: ## remove everything that the targets made, the environment included
	rm -rf .venv sample demo build dist wheelhouse *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
