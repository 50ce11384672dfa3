# make venv    .venv with elbowroom, its tests' tools and the demo's packages
# make test    lint, format, types, docs, and all tests but the long ones: under ten minutes on two cores
# make test-long   the tests marked `long`: whole trainings in processes of their own, compilers, searches
# make test-rig    the CUDA path without a GPU: builds the rig and runs tests/fakecuda there, a file for each process
# make test-databases   half an hour more: PyTorch's own databases of ops, modules and optimizers under elbowroom
# make fuzz    random traces, machines and budgets by the thousand: planners and simulator beside slow, obvious ones;
#              with FUZZ_ARGS="--of trainings" random trainings within budgets, beside plain ones
# make test-zoo   a quarter of an hour more: models of MONAI and transformers under elbowroom; ZOO=zoo,timm adds those of timm
# make test-integrations   ten minutes more: Hugging Face, TRL, Accelerate, Lightning, Keras, skorch, MONAI and Ray
#              within a budget, each with the bits of plain training; INTEGRATIONS=integrations,fastai adds fastai
# make test-jax   ten minutes more: steps of JAX, Flax, Equinox, Haiku and Keras beside XLA's memory analysis; 620 MB
# make docs    the site, in site/; a warning is an error
# make docs-check     runs every code block of README, docs/json.md, docs/onnx.md and the tutorials and compares what they
#              print, some minutes; docs/json.md needs jq
# make wheel-test     builds wheel and sdist, and runs the demo's small size from each, in an empty environment
# make demo    a 3D U-Net that does not fit in memory, trained inside a hard limit
# make bench   the benchmark cases; results go to benchmarks/results
# make gpu     all that is to be measured on a GPU, under nine minutes: python -m benchmarks.gpu with the Python in PYTHON,
#              which has CUDA's build of torch, and the wheels in WHEELS
# make gpu-wheels   fetches into WHEELS what that Python may lack, where there is a network; GPU_PYTHON is its version
# make clean   removes .venv and what the above left behind
#
# PYTHON            the interpreter to build the environment with (3.11 or newer)
# TORCH_CONSTRAINT  a pip constraints file; with a GPU, point it at one that names your CUDA build, or leave it empty
# PIP_ARGS          further arguments of pip install, for example the index that has your build of torch
# FUZZ_ARGS         arguments of the fuzz: --of, --cases, --seed of the first, --seconds to stop after
# WHEELS            folder of wheels for make gpu
# ZOO               extras of the packages whose models make test-zoo trains
# INTEGRATIONS      extras of the packages that make test-integrations trains with; fastai, timm and diffusers are others
# PYTEST_ARGS       further arguments of pytest; by default as many processes as there are cores, up to 4

PYTHON ?= python3
TORCH_CONSTRAINT ?= constraints.txt
PIP_ARGS ?=
FUZZ_ARGS ?= --cases 2000
PYTEST_ARGS ?= -n auto --maxprocesses 4
ZOO ?= zoo
INTEGRATIONS ?= integrations
RIG ?= .rig
RIG_PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile
WHEELS ?= wheels
GPU_PYTHON ?= 3.12
GPU_PACKAGES := 'highspy>=1.15,<1.16' 'rich>=13.7' markdown-it-py mdurl pygments 'pytest>=8.3' iniconfig packaging pluggy \
	'pytest-timeout>=2.3' 'hypothesis>=6.100' sortedcontainers

# Tests start Python some hundred times: with bytecode kept, torch's rig build starts in a third of the time.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
STAMP := .venv/installed

.PHONY: docs docs-check wheel-test venv test test-long rig test-rig test-databases test-integrations test-jax test-zoo fuzz check demo bench gpu gpu-wheels clean
.DEFAULT_GOAL := venv

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11: set PYTHON to a newer one, as in make PYTHON=python3.12 venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP_ARGS) $(if $(TORCH_CONSTRAINT),-c $(TORCH_CONSTRAINT)) -e '.[dev,demo,docs]'
	touch $@

test: check

rig: $(RIG)/built

# The CUDA build of PyTorch over a driver without a GPU: 2.2 GB are downloaded once; needs g++ and CUDA's headers (CUDA_INC).
$(RIG)/built: $(STAMP) $(wildcard tools/rig/*.sh tools/rig/*.py tools/rig/src/*)
	mkdir -p $(RIG)
	cp -r tools/rig/. $(RIG)
	cd $(RIG) && PATH="$(abspath $(BIN)):$$PATH" WITH_TORCH=1 ./build.sh
	touch $@

test-rig: rig
	ELBOWROOM_RIG=$(abspath $(RIG)) $(BIN)/python -m pytest tests/fakecuda --timeout 1200 $(RIG_PYTEST_ARGS)

test-databases: venv
	$(BIN)/python -m pytest tests/databases --timeout 300 $(PYTEST_ARGS)

test-integrations: venv
	$(BIN)/python -m pip install $(PIP_ARGS) $(if $(TORCH_CONSTRAINT),-c $(TORCH_CONSTRAINT)) -e '.[dev,demo,docs,$(INTEGRATIONS)]'
	$(BIN)/python -m pytest tests/integrations --timeout 1200 $(PYTEST_ARGS)

test-jax: venv
	$(BIN)/python -m pip install $(PIP_ARGS) $(if $(TORCH_CONSTRAINT),-c $(TORCH_CONSTRAINT)) -e '.[dev,demo,docs,jax-models]'
	$(BIN)/python -m pytest tests/on_jax --timeout 1200 $(PYTEST_ARGS)

test-zoo: venv
	$(BIN)/python -m pip install $(PIP_ARGS) $(if $(TORCH_CONSTRAINT),-c $(TORCH_CONSTRAINT)) -e '.[dev,demo,docs,$(ZOO)]'
	$(BIN)/python -m pytest tests/zoo --timeout 300 $(PYTEST_ARGS)

fuzz: venv
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

check: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/codespell
	$(BIN)/python -m tools.long_parts
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	$(BIN)/python -m pytest -m "not long" $(PYTEST_ARGS)

test-long: venv
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

docs-check: venv
	$(BIN)/python -m tools.doc_blocks check README.md docs/json.md docs/onnx.md docs/tutorials/*.md

wheel-test: venv
	$(BIN)/python -m tools.wheel_test $(if $(TORCH_CONSTRAINT),--constraint $(TORCH_CONSTRAINT)) -- $(PIP_ARGS)

demo: venv
	$(BIN)/elbowroom demo

bench: venv
	$(BIN)/python -m benchmarks.run

gpu-wheels:
	$(PYTHON) -m pip download $(PIP_ARGS) --no-deps --only-binary=:all: --python-version $(GPU_PYTHON) \
		--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --dest $(WHEELS) $(GPU_PACKAGES)

gpu:
	$(PYTHON) -m benchmarks.gpu $(if $(wildcard $(WHEELS)/*.whl),--wheels $(WHEELS))

clean:
	rm -rf .venv site .pytest_cache .ruff_cache .hypothesis build dist elbowroom-demo
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
