# The doors of the project. `make test` and `make reproduce` work in an empty clone: they make the
# environment first. Every target may be run again; what is done is not done twice.
#
#   make setup          .venv with pinned installs
#   make check          ruff, mypy, and the tests of imports, docstrings, doctests and the command line
#   make test           the test suite
#   make deep           the long versions of the tests, and the mutants
#   make mutants        a sample of one-line bugs: which test sees each (tests/mutation)
#   make reproduce      every CPU experiment, the figures, the paper
#   make data           every CPU experiment
#   make figures        the figures, of the data; make figures-check fails where a committed one is another
#   make paper          the paper, of the data; make paper-check fails where the committed one is another
#   make peers          other projects' scalers, each in an environment of its own below .peers (ampsim.peers)
#   make bench          speed, side by side with torch
#   make gpu            what needs a CUDA device (GPU_PY=python: the machine's own Python); make gpu-dry tries it on a CPU
#   make gpu-kit        what `make gpu` needs on a machine without a network
#   make clean          remove caches; data stays

PYTHON ?= python3
VENV   ?= .venv
PY      = $(VENV)/bin/python
STAMP   = $(VENV)/.installed
EXTRAS  = torch,jax,replay,testing,figures,experiments,paper,dev

# One thread: more are slower on shared cores, and the thread count changes fp16 results.
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1

.PHONY: help setup reproduce plan data figures figures-check paper paper-check test check bench gpu gpu-kit deep mutants peers clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   make/make/p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || { echo "making $(VENV) with `$(PYTHON) --version`"; $(PYTHON) -m venv $(VENV); }
	@echo "installing pinned packages (about a minute; torch is the large one)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

reproduce: plan data figures paper
	@echo "data in experiments/data/, figures in figures/ (look at figures/README.md), the paper in paper/ampsim.pdf"

plan: $(STAMP)
	@echo "three parts: the experiments, which say how long they take; then the figures and the paper"

# A data file that a run repeats to the last bit stays as it is: afterwards `git status` names what measures time.
data: $(STAMP)
	$(PY) -m experiments all --reproduce

bench: $(VENV)/.trackers
	$(PY) -m experiments.overhead --force
	$(PY) -m experiments.replay_speed --force
	$(PY) -m experiments.jax_speed --force
	$(PY) -m experiments.probe_overhead --force
	$(PY) -m figures overhead probe_overhead

figures: $(STAMP)
	$(PY) -m figures

figures-check: $(STAMP)
	$(PY) -m figures --check

paper: $(STAMP)
	$(PY) -m paper

paper-check: $(STAMP)
	$(PY) -m paper --check

test: $(VENV)/.peers
	HYPOTHESIS_PROFILE=ci $(PY) -m pytest -n 2 --dist worksteal -q

check: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q tests/test_*.py tests/figures/test_lint.py

# Other projects' scalers and Triton's interpreter, which a part of the tests runs against. Tests alone wait for them.
$(VENV)/.peers: $(STAMP)
	@echo "installing the other projects that tests compare with (half a minute; triton is the large one)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers]'
	@touch $@

$(VENV)/.trackers: $(VENV)/.peers
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[trackers]'
	@touch $@

# In parts, so that one can be run alone; nothing is installed. GPU_PY needs torch, numpy, ml_dtypes, hypothesis and
# pytest. What else is needed is pure Python; for a machine that has neither it nor a network, `make gpu-kit` here
# puts it into .gpu-kit/, to be copied along with the checkout. `make gpu-dry` tries every command on the CPU first.
#
#   part                minutes on an H200, estimated, not yet measured
#   gpu-tests           4   tests marked gpu: graphs, streams, lockstep with torch, compile, kernels, RoundPipe's loop
#   gpu-sanitizer       4   the same streams under TORCH_CUDA_SANITIZER=1
#   gpu-bench           7   kernels 2, overhead 4, probe_overhead 1
#   gpu-experiments-1   6   claims found on the CPU, and networks that take milliseconds a step
#   gpu-experiments-2   8   the same, with more steps
#   gpu-experiments-3   8   where the gradients lie; half of it is GPT-2 small
#   gpu-experiments-4   8   training GPT-2 small; of gpt_fp16 one seed
GPU_PY     ?= $(PY)
GPU_RUN     = PYTHONPATH=.:.gpu-kit $(GPU_PY)
GPU_TEST    = $(GPU_RUN) -m pytest -q -p no:cacheprovider --tb=short --show-capture=no
GPU_DEVICE ?= cuda
GPU_JOBS   ?= 8
GPU_SMOKE  ?=
GPU_DATA   ?= experiments/data/nvidia-h200
GPU_ON      = --device $(GPU_DEVICE) $(GPU_SMOKE)

GPU_BENCH = kernels overhead $(or $(shell $(GPU_RUN) -c "import wandb" 2>/dev/null && echo probe_overhead),\
              $(info probe_overhead: left out, wandb is not installed))
GPU_1 = device_claims scale_crash growth_interval init_scale policies policies_closed replay_fidelity overflow_storm \
	spikes crash_signals
GPU_2 = resnet_fp16 static_sweep theory_real sigmoid_underflow
GPU_3 = gradient_histogram formats exponent_heatmap
GPU_4 = async_depth
GPU_PARTS = gpu-bench gpu-experiments-1 gpu-experiments-2 gpu-experiments-3 gpu-experiments-4

# The next experiment comes although one has failed. Jobs: one small network alone leaves the device idle.
define gpu_experiments
@status=0; for stem in $(1); do $(GPU_RUN) -m experiments.$$stem $(GPU_ON) $(2) || status=1; done; exit $$status
endef

.PHONY: gpu-tests gpu-sanitizer gpu-dry gpu-dry-tests $(GPU_PARTS)

gpu: gpu-tests gpu-sanitizer $(GPU_PARTS)

gpu-kit: $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-compile --upgrade --target .gpu-kit \
	  -c constraints.txt tyro rich
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-compile --upgrade --target .gpu-kit \
	  -c constraints.txt --no-deps roundpipe beartype py-cpuinfo tqdm

gpu-tests:
	$(GPU_TEST) -m gpu tests/torch tests/probe

# It sees what torch launches: not Triton's kernels, hence without them; not what a graph replays, nor compiled code.
gpu-sanitizer:
	TORCH_CUDA_SANITIZER=1 AMPSIM_TRITON=0 $(GPU_TEST) -m gpu -k "not graph and not capture and not compile" \
	  tests/torch/test_gpu.py

gpu-bench:
	$(call gpu_experiments,$(GPU_BENCH),--force)

gpu-experiments-1:
	$(call gpu_experiments,$(GPU_1),--jobs $(GPU_JOBS))

gpu-experiments-2:
	$(call gpu_experiments,$(GPU_2),--jobs $(GPU_JOBS))

gpu-experiments-3:
	$(call gpu_experiments,$(GPU_3),--jobs $(if $(GPU_SMOKE),1,4))

gpu-experiments-4:
	$(GPU_RUN) -m experiments.gpt_fp16 $(GPU_ON) --jobs 2 $(if $(GPU_SMOKE),,--seeds 0 --out $(GPU_DATA)/gpt_fp16.jsonl)
	$(call gpu_experiments,$(GPU_4),--jobs 2)

gpu-dry:
	$(MAKE) --keep-going gpu-dry-tests $(GPU_PARTS) GPU_DEVICE=cpu GPU_SMOKE=--smoke GPU_JOBS=1

gpu-dry-tests: gpu-tests
	$(GPU_TEST) -m "not gpu" tests/torch/test_gpu.py

# Libraries whose own code drives the scaler, and Ray.
$(VENV)/.clients: $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[clients,ray]'
	@touch $@

deep: $(VENV)/.trackers $(VENV)/.clients
	AMPSIM_DEEP=1 HYPOTHESIS_PROFILE=deep $(PY) -m pytest -n 2 --dist worksteal -q
	$(MAKE) mutants

mutants: $(VENV)/.deep
	$(PY) -m tests.mutation

$(VENV)/.deep: $(VENV)/.peers
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[deep]'
	@touch $@

# Ten minutes and 10 GB where nothing is there yet; what is built stays. AMPSIM_PEERS names another folder.
peers: $(VENV)/.peers $(VENV)/.clients
	$(PY) -m ampsim.peers

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
