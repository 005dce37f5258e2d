# Everything a developer runs. Each target sets up what it needs; only python3, pip and make are
# assumed. Another interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
WORKERS ?= 2
EXAMPLES ?= 200
PROGRAMS ?= 1000
# The most cases of one test that `make quick` runs, and of one that `make test` runs once more in
# another mode; all of them: CASES=100000.
FEW ?= 2
CASES ?= 4
SEED ?= 0
MINUTES ?= 60
# The versions of Python that `make test-pythons` runs tests on, and which tests.
PYTHONS ?= 3.11 3.12 3.13 3.14
TESTS ?= -m "not slow"
# Which processors `make machines` makes code for, if not all lesser ones: MACHINES=x86-64-v3
MACHINES ?=
# The tests whose numbers come from code that differs between processors.
GENERATED := $(addprefix tests/compiler/test_,llvm.py math.py vectors.py products.py \
    short_products.py convolutions.py attention.py partial_sums.py sorting.py jit.py \
    random_programs.py prefetching.py machines.py)
# What runs in the checking mode, too: every primitive, and what shares, joins and plans memory.
CHECKED ?= $(addprefix tests/compiler/test_,program.py random_programs.py schedule.py joins.py \
    empty_axes.py products.py partial_sums.py control.py assignments.py equal_bodies.py)
# Where `make replay` writes what programs are compiled to, and the earlier record it compares with.
RECORD ?= build/replay
AGAINST ?=
# What runs without the fast path and without writes in place, too: calls, state and training.
PLAIN ?= $(addprefix tests/compiler/test_,calls.py donation.py known_calls.py) \
    $(addprefix tests/core/test_,references.py unchanged.py) \
    tests/optim/test_training.py tests/train/test_trainer.py
# What runs with all eager work by reference, and again with all of it in compiled units.
EAGER_TESTS ?= tests/nn tests/optim tests/transforms tests/compiler/test_units.py
# More peers for `make bench`, each in an environment of its own: PEERS="tensorflow onnxruntime"
PEERS ?=
# Options of `make bench` for the comparison of compiled programs, and for that of the eager mode.
BENCH ?=
EAGER ?=
# The revisions of which `make docs-versions` builds the site, the one that is opened first.
VERSIONS ?= HEAD
# Options of `make bench-distributed`.
DISTRIBUTED ?=

VENV := .venv/.complete
VENV_BENCH := .venv-bench/.complete
VENV_DOCS := .venv-docs/.complete

.DEFAULT_GOAL := help
.PHONY: help venv demo test coverage quick test-pythons test-gpu checked plain eager replay fuzz machines conformance lint bench bench-distributed bench-gpu sitting docs docs-versions dist nightly examples clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

venv: $(VENV)  ## create .venv with weft (editable), the test tools and the linters

demo: $(VENV)  ## train a small GPT on Shakespeare for about a minute and show what it writes
	@.venv/bin/python examples/demo.py

test: $(VENV)  ## all tests, then some cases of each in the checking mode, without shortcuts, by each eager way and for lesser processors
	.venv/bin/python -m pytest -q -n $(WORKERS) --ignore tests/test_fuzz.py
	.venv/bin/python -m pytest -q -n $(WORKERS) tests/test_fuzz.py  # apart: one worker would get all of it
	@$(MAKE) --no-print-directory checked plain eager machines

coverage: $(VENV)  ## the quick tests with coverage of the library, which must be 90 % at least
	.venv/bin/python -m pytest -q -n $(WORKERS) -m "not slow" --cov --cov-report=term

quick: $(VENV)  ## for the loop of a developer: all tests but the slow ones, of each with many cases two; FEW=1000 for all cases
	.venv/bin/python -m pytest -q -n $(WORKERS) -m "not slow" --few $(FEW)

test-pythons:  ## the tests of `make quick` on Python 3.11 to 3.14, where they are to be had; PYTHONS="3.13" TESTS="tests/core"
	@scripts/test-pythons "$(PYTHONS)" -q -n $(WORKERS) $(TESTS)

test-gpu: $(VENV)  ## the tests that need an NVIDIA card, and random programs on it; skipped where there is none
	.venv/bin/python -m pytest -q -n 0 tests/gpu
	@test ! -e /dev/nvidiactl || .venv/bin/python -m tests.fuzz --programs $(PROGRAMS) --seed $(SEED) \
	    --minutes $(MINUTES) --workers $(WORKERS) --threads 1 --ways cuda,cuda-eager

checked: $(VENV)  ## the tests of programs and memory in the checking mode; CHECKED=tests/compiler for more
	WEFT_CHECK=memory .venv/bin/python -m pytest -q -n $(WORKERS) --few $(CASES) $(CHECKED)

plain: $(VENV)  ## tests of calls and training without the fast path and writes in place; PLAIN=tests/compiler for more
	WEFT_FASTCALL=off WEFT_IN_PLACE=off .venv/bin/python -m pytest -q -n $(WORKERS) --few $(CASES) $(PLAIN)

eager: $(VENV)  ## tests of layers, optimisers and transforms with eager work by reference, and in compiled units of any size
	WEFT_EAGER=reference .venv/bin/python -m pytest -q -n $(WORKERS) --few $(CASES) $(EAGER_TESTS)
	WEFT_EAGER_ELEMENTS=1 .venv/bin/python -m pytest -q -n $(WORKERS) --few $(CASES) $(EAGER_TESTS)

machines: $(VENV)  ## the tests of generated code, for each lesser processor that this one can be
	@set -e; for machine in $(filter-out x86-64-v2,$(or $(MACHINES),$(shell .venv/bin/python -c \
	    "from weft.compiler.targets.cpu.machine import available_machines; print(*available_machines()[:-1])"))); do \
	    echo "WEFT_MACHINE=$$machine"; WEFT_MACHINE=$$machine .venv/bin/python -m pytest -q \
	    -n $(WORKERS) --few $(CASES) $(GENERATED); done

replay: $(VENV)  ## what the benchmarks are compiled to, in RECORD; AGAINST=FOLDER shows what has changed since
	.venv/bin/python tools/replay.py record $(RECORD)
	@test -z "$(AGAINST)" || .venv/bin/python tools/replay.py compare $(AGAINST) $(RECORD)

fuzz: $(VENV)  ## random programs in every way of running them: PROGRAMS=20000 SEED=7 MINUTES=60
	.venv/bin/python -m tests.fuzz --programs $(PROGRAMS) --seed $(SEED) --minutes $(MINUTES) \
	    --workers $(WORKERS) --coverage

conformance: $(VENV)  ## the Array API's public tests, of the checkout that ARRAY_API_TESTS names
	@test -f "$(ARRAY_API_TESTS)/requirements.txt" || { echo "ARRAY_API_TESTS must name a" \
	    "checkout of https://github.com/data-apis/array-api-tests with its submodules"; exit 1; }
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check \
	    --requirement "$(ARRAY_API_TESTS)/requirements.txt"
	cd "$(ARRAY_API_TESTS)" && ARRAY_API_TESTS_MODULE=weft $(CURDIR)/.venv/bin/python -m pytest \
	    -p no:cacheprovider -n $(WORKERS) --disable-deadline --max-examples $(EXAMPLES) \
	    array_api_tests

lint: $(VENV)  ## ruff's rules, ruff's format, mypy in strict mode
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: $(VENV_BENCH) $(PEERS:%=.venv-bench-%/.complete)  ## time Weft beside PyTorch and JAX (a large download the first time); BENCH="--quick" EAGER="--quick"
	.venv-bench/bin/python benchmarks/eager.py --all --json $(EAGER)
	.venv-bench/bin/python benchmarks/compare.py $(BENCH)

bench-distributed: $(VENV) $(VENV_BENCH)  ## time data parallel steps and sums over processes beside PyTorch's DDP and FSDP on gloo; DISTRIBUTED="--quick"
	.venv/bin/python benchmarks/distributed.py --torch .venv-bench/bin/python $(DISTRIBUTED)

sitting: $(VENV)  ## tests, random programs and open benchmarks on a card that is lent for minutes; SITTING="--seconds 580 --only tests"
	.venv/bin/python benchmarks/gpu/sitting.py $(SITTING)

bench-gpu: $(VENV_BENCH)  ## time Weft beside PyTorch and JAX on an NVIDIA card; GPU="--only mlp eager"
	.venv-bench/bin/python benchmarks/gpu/compare.py $(GPU)

docs: $(VENV_DOCS)  ## generate the generated pages, then the site in build/site; its links are checked
	@set -e; for script in $(wildcard docs/generate_*.py); do \
	    echo "$$script"; .venv-docs/bin/python $$script; done
	@.venv-docs/bin/python -m sphinx -q -W --keep-going -j $(WORKERS) -b html -c docs . build/site
	@.venv-docs/bin/python docs/check_site.py build/site

docs-versions: $(VENV_DOCS)  ## the sites of several versions side by side in build/versions: VERSIONS="v0.2.0 v0.1.0"
	@.venv-docs/bin/python docs/build_versions.py build/versions $(VERSIONS)
	@.venv-docs/bin/python docs/check_site.py build/versions

dist:  ## the wheel and the sdist in dist/, installed into a clean environment and tried
	@$(PYTHON) scripts/build-dist dist

examples: $(VENV)  ## run every example in full
	@set -e; for script in $(wildcard examples/*.py) "examples/digits.py --model lenet" \
	    "examples/images.py --model vgg19" "examples/diffusion.py --on digits --steps 1000" \
	    "examples/recommender.py --model dlrm" "examples/text_generation.py --model gpt2"; do \
	    echo "== $$script"; .venv/bin/python $$script; done

nightly: $(VENV_BENCH) lint coverage examples docs dist bench  ## all of the above, a long random search, peers as reference
	.venv-docs/bin/python docs/run_notebooks.py
	HYPOTHESIS_PROFILE=nightly WEFT_TEST_SEED=random \
	    .venv-bench/bin/python -m pytest -n $(WORKERS)
	@$(MAKE) --no-print-directory checked CASES=100000 CHECKED="tests/compiler tests/test_benchmarks.py"
	@$(MAKE) --no-print-directory plain eager machines CASES=100000
	.venv-bench/bin/python -m tests.fuzz --programs 20000 --minutes 120 --workers $(WORKERS) \
	    --seed $$(date +%j000000) --coverage

clean:  ## remove what make created, the environments too
	rm -rf .venv .venv-bench .venv-bench-* .venv-docs .venv-bootstrap .venv-pythons build dist htmlcov .coverage .coverage.*
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

# The package, editable, with the named extras, in a virtual environment of its own.
$(VENV): EXTRAS := test,lint
$(VENV_BENCH): EXTRAS := test,peers
$(VENV_DOCS): EXTRAS := docs
$(VENV) $(VENV_BENCH) $(VENV_DOCS): pyproject.toml scripts/create-venv
	@echo "setting up $(@D) with $(EXTRAS) ..."
	@scripts/create-venv $(PYTHON) $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

# A peer alone, without weft, so that its needs do not meet those of others.
.venv-bench-tensorflow/.complete: PACKAGES := tensorflow-cpu keras
.venv-bench-onnxruntime/.complete: PACKAGES := onnxruntime onnx
.venv-bench-tensorflow/.complete .venv-bench-onnxruntime/.complete: scripts/create-venv
	@echo "setting up $(@D) with $(PACKAGES) ..."
	@scripts/create-venv $(PYTHON) $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PACKAGES)
	@touch $@
