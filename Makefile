# Main targets. `make test` and `make reproduce` work in an empty clone: they make the environment first.
# Every target may be run again; what is done is not done twice.
#
#   make setup          .venv with pinned installs
#   make lint           ruff, mypy, and the size budgets of pyproject.toml
#   make check          these, and the tests of imports, docstrings, doctests and the command line
#   make test           the test suite (TESTS="tests/torch" for a part of it)
#   make quick          the tests of core, lint, layers, docs, and the command line, in a minute
#   make deep           the long versions of the tests
#   make reproduce      every CPU experiment, the figures and the paper, anew in build/here; how they stand to the
#                       committed ones, of which it changes none
#   make data           every CPU experiment, in place of the committed data
#   make figures        the figures, of the data; make figures-check fails where a committed one is another
#   make paper          the paper, of the data; make paper-check fails where the committed one is another
#   make frameworks          judge other projects' scalers (ampsim.frameworks) into build/here; they are installed into .venv
#   make docs           the site, in build/site: docs/, README.md, docstrings, figures; it needs no network to be read
#   make wheel          the wheel and the source distribution, in build/dist, and what checkers say of them
#   make versions       the quick tests on every version of Python, torch and JAX of .ci/noxfile.py that can be had
#   make bench          speed, side by side with other projects and with a floor: tables, and build/bench/*.jsonl
#   make gpu            what an accelerator can show, in MINUTES, with the Python GPU_PY
#   make clean          remove caches; data stays

PYTHON ?= python3
VENV   ?= .venv
PY      = $(VENV)/bin/python
STAMP   = $(VENV)/.installed
EXTRAS  = torch,jax,replay,testing,figures,experiments,paper,dev

# One thread: more are slower on shared cores, and the thread count changes fp16 results.
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1

.PHONY: help setup reproduce data figures figures-check paper paper-check test lint check bench gpu quick deep frameworks docs wheel versions clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   make/make/p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || { echo "making $(VENV) with `$(PYTHON) --version`"; $(PYTHON) -m venv $(VENV); }
	@echo "installing pinned packages (about a minute; torch is the large one)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

# It ends well wherever everything ran: claims that this processor's data does not bear out are its result.
reproduce: $(STAMP)
	@echo "three parts, all in build/here: the experiments, which say how long they take; then the figures and the paper"
	$(PY) -m experiments all --reproduce
	$(PY) -m figures --data build/here/data/cpu --out build/here/figures
	$(PY) -m paper --here
	@$(PY) -m experiments records
	@$(PY) -m experiments claims
	@echo "data in build/here/data/, figures in build/here/figures/ (README.md shows them), paper build/here/paper/ampsim.pdf"

# A data file that this machine repeats to the last bit stays as it is.
data: $(STAMP)
	$(PY) -m experiments all --reproduce
	$(PY) -m experiments adopt

# With the kernels of this processor, as its users have them.
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

# Bytecode is kept even where the environment says not to: each process would compile the sources anew.
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

# Other projects' scalers, which a part of the tests runs against. Tests alone wait for them.
$(VENV)/.frameworks: $(STAMP)
	@echo "installing the other projects that tests compare with (half a minute)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[frameworks]'
	@touch $@

$(VENV)/.trackers: $(VENV)/.frameworks
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[trackers]'
	@touch $@

# The machine's own Python has the torch that fits its device: make gpu GPU_PY=python3 MINUTES=9
GPU_PY  ?= $(PY)
MINUTES ?= 9
gpu:
	$(GPU_PY) -m experiments gpu --minutes $(MINUTES)

# Libraries whose own code drives the scaler, and Ray.
$(VENV)/.clients: $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[clients,ray]'
	@touch $@

deep: $(VENV)/.trackers $(VENV)/.clients $(VENV)/.docs
	AMPSIM_DEEP=1 HYPOTHESIS_PROFILE=deep $(PY) -m pytest -n 2 --dist worksteal -q

# Scalers of packages that plain pip does not install beside these keep their committed record.
frameworks: $(VENV)/.frameworks
	@DS_BUILD_OPS=0 $(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt deepspeed
	$(PY) -m experiments conformance --reproduce

$(VENV)/.docs: $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet -f .ci/mkdocs.yml
	@echo "build/site/index.html"

# In environments of their own: what builds and checks a wheel is no part of what is developed.
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
