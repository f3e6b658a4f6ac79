# The doors of the project. `make test` and `make reproduce` work in an empty clone: they make the
# environment first. Every target may be run again; what is done is not done twice.
#
#   make setup          .venv with pinned installs
#   make check          ruff, mypy, and the tests of imports, docstrings, doctests and the command line
#   make test           the test suite
#   make deep           the long versions of the tests, and the mutants
#   make mutants        a sample of one-line bugs: which test sees each (tests/mutation)
#   make reproduce      every CPU experiment, the figures and the paper, anew in build/here; how they stand to the
#                       committed ones, of which it changes none
#   make data           every CPU experiment, in place of the committed data
#   make figures        the figures, of the data; make figures-check fails where a committed one is another
#   make paper          the paper, of the data; make paper-check fails where the committed one is another
#   make peers          other projects' scalers, each in an environment of its own below .peers (ampsim.peers)
#   make bench          speed, side by side with torch
#   make gpu-1          what needs a CUDA device, in three parts: gpu-1, gpu-2, gpu-3, results in $OUT
#                       (GPU_PY=python: the machine's own Python); make gpu-dry tries them on a CPU
#   make gpu-kit        what they need on a machine without a network
#   make clean          remove caches; data stays

PYTHON ?= python3
VENV   ?= .venv
PY      = $(VENV)/bin/python
STAMP   = $(VENV)/.installed
EXTRAS  = torch,jax,replay,testing,figures,experiments,paper,dev

# One thread: more are slower on shared cores, and the thread count changes fp16 results.
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1

.PHONY: help setup reproduce data figures figures-check paper paper-check test check bench gpu gpu-kit deep mutants peers clean
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

# On a borrowed card: three parts, none over 9 minutes by the limits of its stages, the most valuable first, nothing is
# installed. After each stage what there is so far, logs, JUnit files and data, is one archive $(OUT)/gpu-N.tgz. GPU_PY
# needs torch, numpy, ml_dtypes, hypothesis and pytest; what else is needed is pure Python, and for a machine that has
# neither it nor a network nor git `make gpu-kit` here puts it into .gpu-kit/, to be copied along with the checkout.
# Where there is no make, `bash .gpu-kit/gpu-1.sh` is `make gpu-1 GPU_PY=python3`. `make gpu-dry` tries all on the CPU.
#
#   gpu-1   the kernels, every test marked gpu, GPT-2 small, ResNet
#   gpu-2   torch's sanitizer, JAX, the optimizer on its own stream, collapse, claims
#   gpu-3   the benchmarks in full, memcheck, the tests again after what part 1 had mended
GPU_PY     ?= $(PY)
GPU_DEVICE ?= cuda
GPU_SMOKE  ?=
GPU_DATA   ?= experiments/data/nvidia-h200
GPU_ONLY   ?= gpu
GPU_TESTS  ?= tests/torch tests/probe
GPU_JAX    ?= cuda,cpu
GPU_JAX_TESTS ?= $(addprefix tests/jax/test_,gpu.py dlpack.py exact.py finite.py loss_scale.py grad.py)
GPU_SANITIZER ?= TORCH_CUDA_SANITIZER=1
OUT        ?= build/gpu
GPU_LOG     = build/$@
GPU_RUN     = PYTHONPATH=.:.gpu-kit PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8 $(GPU_PY)
# A time limit, which `timeout` tells twice, ends the tests as Ctrl-C does: with what has failed, and the JUnit file.
GPU_PYTEST  = $(GPU_RUN) -c "import pytest, sys; from signal import *; \
	signal(SIGTERM, lambda *at: [signal(SIGTERM, SIG_IGN), default_int_handler(*at)]); sys.exit(pytest.main())" \
	-q -p no:cacheprovider --tb=short
GPU_TEST    = $(GPU_PYTEST) --show-capture=no -o faulthandler_timeout=120 -o junit_family=xunit1 -m "$(GPU_ONLY)"
GPU_ON      = --device $(GPU_DEVICE) $(GPU_SMOKE)
AMPSIM_COMMIT ?= $(shell cat .gpu-kit/commit 2>/dev/null)
export AMPSIM_COMMIT

# (seconds, name, command): a stage, whose log is packed however it ends.
gpu_stage = { timeout -k 10 $(1) env $(3) >$(GPU_LOG)/$(2).log 2>&1 || echo "$(2): status $$?" >>$(GPU_LOG)/failed; \
	tail -n 12 $(GPU_LOG)/$(2).log; $(gpu_pack); }
gpu_pack  = flock build/gpu.lock tar czf $(OUT)/$@.tgz $(GPU_LOG) $$(ls -d $(GPU_DATA) 2>/dev/null)
# (experiments, options): in one pool of processes; with a second list, of one seed or less work, into a file of its own.
gpu_run   = $(GPU_RUN) -m experiments $(1) $(GPU_ON) $(if $(GPU_SMOKE),,$(2))
gpu_short = $(call gpu_run,$(1),$(2) --out $(GPU_DATA)/$(or $(3),$(1)).jsonl)
gpu_begin = @rm -rf $(GPU_LOG) && mkdir -p $(GPU_LOG) $(OUT) && { nvidia-smi; uname -r; \
	$(GPU_PY) -m pip list 2>/dev/null | grep -iE '^(torch|triton|jax|numpy|pytest|hypothesis) '; } >$(GPU_LOG)/env.txt 2>&1 || true
gpu_end   = @if test -s $(GPU_LOG)/failed; then cat $(GPU_LOG)/failed; exit 1; fi

.PHONY: gpu-1 gpu-2 gpu-3 gpu-dry

gpu: gpu-1 gpu-2 gpu-3

gpu-kit: $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-compile --upgrade --target .gpu-kit \
	  -c constraints.txt tyro rich
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-compile --upgrade --target .gpu-kit \
	  -c constraints.txt --no-deps roundpipe beartype py-cpuinfo tqdm
	@git rev-parse HEAD >.gpu-kit/commit
	@for part in gpu-1 gpu-2 gpu-3; do { \
	  echo "export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 AMPSIM_COMMIT=`cat .gpu-kit/commit`"; \
	  $(MAKE) --no-print-directory -n $$part GPU_PY=python3 OUT='$$$${OUT:-build/gpu}'; } >.gpu-kit/$$part.sh; done

gpu-1:
	$(gpu_begin)
	@$(call gpu_stage,110,kernels,$(call gpu_short,kernels,--force --trials 1 --steps 12 --sizes 400x1000 gpt2-12x768,kernels_short))
	@$(call gpu_stage,330,tests,$(GPU_TEST) --durations=15 --junitxml=$(GPU_LOG)/tests.xml $(GPU_TESTS)) & \
	  $(call gpu_stage,300,gpt_fp16,$(call gpu_short,gpt_fp16,--jobs 2 --seeds 0)); wait
	@$(call gpu_stage,90,resnet_fp16,$(call gpu_short,resnet_fp16,--jobs 6 --seeds 0))
	$(gpu_end)

# The sanitizer sees what torch launches: not Triton's kernels, nor what a graph replays, nor compiled code.
gpu-2:
	$(gpu_begin)
	@$(call gpu_stage,280,sanitizer,$(GPU_SANITIZER) AMPSIM_TRITON=0 $(GPU_TEST) \
	  -k "not graph and not capture and not compile" --junitxml=$(GPU_LOG)/sanitizer.xml tests/torch/test_gpu.py) & \
	  $(call gpu_stage,140,pool,$(call gpu_run,scale_crash device_claims exponent_heatmap,--jobs 4 --force)); \
	  $(call gpu_stage,140,static_sweep,$(call gpu_short,static_sweep,--jobs 4 --seeds 0)); wait
	@$(call gpu_stage,240,jax,JAX_PLATFORMS=$(GPU_JAX) XLA_PYTHON_CLIENT_PREALLOCATE=false HYPOTHESIS_PROFILE=dev \
	  $(GPU_PYTEST) --junitxml=$(GPU_LOG)/jax.xml $(GPU_JAX_TESTS)) & \
	  $(call gpu_stage,140,async_depth,$(call gpu_short,async_depth,--jobs 2 --seeds 0)); wait
	$(gpu_end)

gpu-3:
	$(gpu_begin)
	@$(call gpu_stage,180,kernels,$(call gpu_run,kernels,--force))
	@$(call gpu_stage,130,overhead,$(call gpu_short,overhead,--force --trials 2,overhead_short))
	@! command -v compute-sanitizer >/dev/null || $(call gpu_stage,60,memcheck,PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
	  PYTHONPATH=.:.gpu-kit compute-sanitizer --tool memcheck --error-exitcode 1 $(GPU_PY) -m pytest -q -p no:cacheprovider \
	  -m gpu -k "inf_and_nan or tiny" tests/torch/test_kernels.py)
	@$(call gpu_stage,160,tests,$(GPU_TEST) --junitxml=$(GPU_LOG)/tests.xml $(GPU_TESTS))
	$(gpu_end)

gpu-dry:
	$(MAKE) --keep-going gpu-1 gpu-2 gpu-3 GPU_DEVICE=cpu GPU_SMOKE=--smoke GPU_ONLY="not gpu" GPU_JAX=cpu GPU_JAX_TESTS=tests/jax/test_gpu.py GPU_SANITIZER= \
	  GPU_TESTS="tests/torch/test_gpu.py tests/probe/test_gpu.py"

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
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis $(filter-out build/here,$(wildcard build/*)) *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
