.DEFAULT_GOAL := help
PYTHON ?= python3
SEEDS ?= 1
# One test process per core; the tests of a file run in one process, so that its fixtures are made once.
WORKERS ?= -n 2 --dist loadfile
BIN := .venv/bin
# Names of files in scripts/bench; empty for all.
BENCHES ?=
# The packages that benchmarks compare with, apart from .venv.
PEERS := build/bench-peers
# The packages that are type-checked: most of them work without fairseq.
TYPED := fairseq_clear/errors.py fairseq_clear/settings.py fairseq_clear/spec.py fairseq_clear/files.py fairseq_clear/output_folder.py \
         fairseq_clear/distributed.py fairseq_clear/augmentations fairseq_clear/objectives fairseq_clear/modules \
         fairseq_clear/text fairseq_clear/views fairseq_clear/data fairseq_clear/cli

.PHONY: help install check docs format test test-fast demo bench bench-peers wheelhouse clean test-slurm

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: ## make .venv with the exact versions of requirements.txt (Python 3.11 or 3.12) (safe to rerun)
	@PYTHON=$(PYTHON) scripts/install.sh

demo: install ## five minutes on two cores: text, pretraining, embeddings, one table (SEEDS="1 2 3" repeats it)
	@$(BIN)/python examples/demo/run.py --output demo --seeds $(SEEDS)

test: install ## every test
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS)

test-fast: install ## the tests that take under two seconds each
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) -m "not slow and not real"

test-slurm: install ## scripts/slurm on a real Slurm, started here for the while; needs root and Debian (apt-get)
	@if [ "$$(id -u)" -ne 0 ]; then echo "test-slurm: skipped: not root"; else OMP_NUM_THREADS=1 scripts/slurm/local_cluster.sh --install \
	  $(BIN)/python -m pytest -rs tests/scripts/test_slurm_real.py; fi

check: install ## style, types of the pure layers, import directions, published tables, shell scripts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy $(TYPED)
	@$(BIN)/python -m pytest tests/test_layers.py
	@$(BIN)/python scripts/check_tables.py
	@if command -v shellcheck >/dev/null; then git ls-files '*.sh' '*.sbatch' scripts/slurm/bin .ci/run | xargs shellcheck; else echo "check: shellcheck is not installed, shell scripts left unread"; fi

docs: install ## the documentation as a site, build/site/index.html; a broken link is an error
	@scripts/docs.sh

format: install ## rewrite the code in the project's style
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: install ## speed compared with other libraries, as ratios within one run: build/bench.json (BENCHES="views encode")
	@$(BIN)/python -W ignore scripts/bench $(BENCHES) --output build/bench --peers $(PEERS)

bench-peers: install ## the packages that bench compares with and .venv lacks
	@$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(PEERS) -r scripts/bench/requirements.txt
	@command -v spm_encode >/dev/null || echo "bench-peers: spm_encode is not installed (Debian: apt-get install sentencepiece)"

wheelhouse: install ## wheels of all but torch and numpy, for a machine without a network
	@scripts/wheelhouse.sh wheelhouse

clean: ## remove what the targets made, the environment included
	rm -rf .venv demo build dist wheelhouse *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
