# Two commands: `make dev` serves a real model on this machine, `make test` checks everything.
# `make soak` runs the long forms of the tests, `make bench` the benchmarks.

BIN := .venv/bin
CODE := bootstrap.py gateway runtime engines config tests benchmarks

.PHONY: dev test lint soak bench clean install-dev install-test

dev: install-dev
	@exec $(BIN)/bulkhead dev

test: install-test lint
	$(BIN)/python -m pytest

soak: install-test
	BULKHEAD_SOAK=1 $(BIN)/python -m pytest

lint:
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: install-test
	for bench in benchmarks/bench_*.py; do $(BIN)/python -m benchmarks.$$(basename $$bench .py); done

install-dev:
	@python3 bootstrap.py dev

install-test:
	@python3 bootstrap.py test

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
