# Main targets. `make test` and `make reproduce` work in an empty clone: they create the environment first.
# You can repeat every target; work that is up to date is skipped.
#
#   make setup          create .venv with pinned packages
#   make quick          run the tests of core, lint, layers, docs, and the command line; half a minute on two cores
#   make lint           run ruff, mypy, and the size budgets of pyproject.toml
#   make check          run `make lint`, and the tests of imports, docstrings, doctests, and the command line
#   make test           run the test suite (TESTS="tests/torch" runs a part of it)
#   make deep           run all tests, including the slow ones
#   make reproduce      rerun every CPU experiment, figure, and the paper into build/here; changes no committed file
#   make data           rerun every CPU experiment and replace the committed data
#   make figures        render the figures from the data; make figures-check compares them with the committed ones
#   make paper          build the paper from the data; make paper-check compares it with the committed one
#   make frameworks     check other projects' scalers again into build/here; installs them into .venv
#   make engines        run training engines in fp16 again into build/here; installs them into build/engines
#   make docs           build the documentation site in build/site; it needs no network to read
#   make wheel          build and check the wheel and the source distribution in build/dist
#   make versions       run the quick tests on each version of Python, torch, and JAX in .ci/noxfile.py
#   make bench          measure the speed of ampsim, other projects, and a lower bound: tables, and build/bench/*.jsonl
#   make gpu            run the tests and experiments that need an accelerator, in MINUTES, with the Python GPU_PY
#   make clean          remove caches; data stays

PYTHON ?= python3
VENV   ?= .venv
PY      = $(VENV)/bin/python
STAMP   = $(VENV)/.installed
PIP     = $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt

# One thread: more threads are slower on shared cores, and the thread count changes fp16 results.
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1

.PHONY: help setup reproduce data figures figures-check paper paper-check test lint check bench gpu quick deep frameworks engines docs wheel versions clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   make/make/p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || { echo "creating $(VENV) with `$(PYTHON) --version`"; $(PYTHON) -m venv $(VENV); }
	@echo "installing pinned packages (about a minute; torch is the largest)"
	@$(PIP) --upgrade pip  # dependency groups need 25.1
	@$(PIP) -e '.[testing,experiments]' --group dev
	@touch $@

# Exit status 0 if everything ran: a claim that the data of this processor refutes is a result, not an error.
reproduce: $(STAMP)
	@echo "into build/here: the experiments (an estimate of the time follows), then the figures and the paper"
	$(PY) -m experiments all --reproduce
	$(PY) -m figures --data build/here/data/cpu --out build/here/figures
	$(PY) -m paper --here
	@$(PY) -m experiments records
	@$(PY) -m experiments claims
	@echo "wrote data to build/here/data/, figures to build/here/figures/ (see README.md), and build/here/paper/ampsim.pdf"

# A data file that this machine reproduces bit for bit stays unchanged.
data: $(STAMP)
	$(PY) -m experiments all --reproduce
	$(PY) -m experiments adopt

# Use the kernels that torch chooses for this processor, as in a user's environment.
bench: export AMPSIM_KERNELS = own
bench: $(VENV)/.trackers
	$(PY) -m experiments.bench.step
	$(PY) -m experiments.bench.replay
	$(PY) -m experiments.bench.jax_step
	$(PY) -m experiments.bench.watching
	$(PY) -m experiments.bench.commands

figures: $(STAMP)
	$(PY) -m figures

figures-check: $(STAMP)
	$(PY) -m figures --check

paper: $(STAMP)
	$(PY) -m paper

paper-check: $(STAMP)
	$(PY) -m paper --check

# Write bytecode even if the environment disables it: otherwise each process compiles the sources again.
test: $(VENV)/.frameworks
	PYTHONDONTWRITEBYTECODE= HYPOTHESIS_PROFILE=ci $(PY) -m pytest -n 2 --dist worksteal -q $(TESTS)

QUICK = tests/core tests/lint tests/test_floors.py tests/test_import.py tests/test_docs.py tests/test_cli.py
quick: $(STAMP)
	PYTHONDONTWRITEBYTECODE= HYPOTHESIS_PROFILE=ci $(PY) -m pytest -n 2 --dist worksteal -q $(QUICK)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) .ci/budgets.py

check: lint
	$(PY) -m pytest -q tests/test_*.py tests/figures/test_lint.py

# Other projects' scalers, which some tests need.
$(VENV)/.frameworks: $(STAMP)
	@echo "installing other projects for the tests (half a minute)"
	@$(PIP) --no-build-isolation --group frameworks
	@touch $@

$(VENV)/.trackers: $(VENV)/.frameworks
	@$(PIP) -e '.[report]'
	@touch $@

# To use the torch that is installed for the device: make gpu GPU_PY=python3 MINUTES=9
GPU_PY  ?= $(PY)
MINUTES ?= 9
gpu:
	JAX_PLATFORMS= $(GPU_PY) -m pytest -q -m gpu tests/torch/test_gpu.py tests/probe/test_gpu.py tests/jax/test_gpu.py
	$(GPU_PY) -m experiments gpu --minutes $(MINUTES)

# Libraries whose training loops use the scaler.
$(VENV)/.clients: $(STAMP)
	@$(PIP) --group clients
	@touch $@

deep: $(VENV)/.trackers $(VENV)/.clients $(VENV)/.docs
	AMPSIM_DEEP=1 HYPOTHESIS_PROFILE=deep $(PY) -m pytest -n 2 --dist worksteal -q
	$(PY) -m tests.torch.soak 600

# Packages that pip cannot install beside these keep their committed results.
frameworks: $(VENV)/.frameworks
	@DS_BUILD_OPS=0 $(PIP) --no-build-isolation deepspeed
	$(PY) -m experiments conformance --reproduce
	$(PY) -m experiments zero_reductions --reproduce

# In an environment of their own: verl's requirements contradict the versions of other engines, so it comes without them.
ENGINES = accelerate==1.15.0 datasets==5.2.0 deepspeed==0.19.8 lightning==2.6.6 megatron-core==0.16.1 mmengine==0.10.7 \
          msgpack==1.2.4 torch==2.14.1 transformers==5.24.0 trl==1.16.0
VERL    = codetiming hydra-core orjson peft pylatexenc ray tensordict torchdata
engines:
	@test -x build/engines/bin/python || $(PYTHON) -m venv build/engines
	@DS_BUILD_OPS=0 build/engines/bin/python -m pip install --quiet --disable-pip-version-check $(ENGINES) $(VERL) -e '.[experiments,testing]'
	@build/engines/bin/python -m pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1
	build/engines/bin/python -m experiments engines --reproduce

$(VENV)/.docs: $(STAMP)
	@$(PIP) --group docs
	@touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet -f .ci/mkdocs.yml
	@echo "wrote build/site/index.html"

# The build tools are installed in a separate environment.
wheel: $(STAMP)
	@$(PY) -m venv build/tools
	@build/tools/bin/pip install --quiet --disable-pip-version-check -c constraints.txt build twine check-wheel-contents
	build/tools/bin/python -m build --outdir build/dist
	build/tools/bin/twine check --strict build/dist/*
	build/tools/bin/check-wheel-contents build/dist

versions: $(STAMP)
	@$(PY) -m venv build/tools
	@build/tools/bin/pip install --quiet --disable-pip-version-check -c constraints.txt nox
	build/tools/bin/nox -f .ci/noxfile.py

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis $(filter-out build/here,$(wildcard build/*)) *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
