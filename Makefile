# The doors of the project. `make test` and `make reproduce` work in an empty clone: they make the
# environment first. Every target may be run again; what is done is not done twice.
#
#   make setup      .venv with pinned installs            make check   ruff, mypy, doctests, floors
#   make reproduce  every CPU experiment, all figures     make deep    the long versions of the tests
#   make test       the test suite                        make bench   speed, side by side with torch
#   make gpu        what needs a CUDA device (GPU_PY=python to use the machine's own)
#   make clean      remove caches; data stays

PYTHON ?= python3
VENV   ?= .venv
PY      = $(VENV)/bin/python
STAMP   = $(VENV)/.installed
EXTRAS  = torch,jax,replay,testing,figures,experiments,dev

# One thread: more are slower on shared cores, and the thread count changes fp16 results.
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1

.PHONY: help setup reproduce data figures figures-check test check bench gpu gpu-kit deep clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \{0,3\}//p' Makefile | head -8

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || { echo "making $(VENV) with `$(PYTHON) --version`"; $(PYTHON) -m venv $(VENV); }
	@echo "installing pinned packages (about a minute; torch is the large one)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

reproduce: data figures
	@echo "data in experiments/data/, figures in figures/"

data: $(STAMP)
	$(PY) -m experiments all --reproduce

bench: $(VENV)/.peers
	$(PY) -m experiments.overhead --force
	$(PY) -m experiments.replay_speed --force
	$(PY) -m experiments.jax_speed --force
	$(PY) -m figures overhead

figures: $(STAMP)
	$(PY) -m figures

figures-check: $(STAMP)
	$(PY) -m figures --check

test: $(STAMP)
	HYPOTHESIS_PROFILE=ci $(PY) -m pytest -n 2 --dist worksteal -q

check: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q tests/test_floors.py tests/test_import.py tests/test_doctests.py

$(VENV)/.peers: $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers]'
	@touch $@

# In parts, so that one can be run alone; each ends within minutes. Nothing is installed: GPU_PY needs torch, numpy,
# ml_dtypes, hypothesis and pytest. What else the experiments need is pure Python; for a machine that has neither it
# nor a network, `make gpu-kit` here puts it into .gpu-kit/, to be copied along with the checkout.
GPU_PY ?= $(PY)
GPU_RUN = PYTHONPATH=.:.gpu-kit $(GPU_PY)

gpu-kit: $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check --upgrade --target .gpu-kit -c constraints.txt tyro rich

gpu: gpu-tests gpu-sanitizer gpu-bench gpu-experiments

gpu-tests:
	$(GPU_RUN) -m pytest -q -m gpu -p no:cacheprovider tests/torch

gpu-sanitizer:
	TORCH_CUDA_SANITIZER=1 $(GPU_RUN) -m pytest -q -m gpu -p no:cacheprovider tests/torch

gpu-bench:
	$(GPU_RUN) -m experiments.overhead --device cuda --force

gpu-experiments:
	$(GPU_RUN) -m experiments.scale_crash --device cuda
	$(GPU_RUN) -m experiments.sigmoid_underflow --device cuda

deep: $(VENV)/.peers
	AMPSIM_DEEP=1 HYPOTHESIS_PROFILE=deep $(PY) -m pytest -n 2 --dist worksteal -q

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
