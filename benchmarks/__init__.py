"""Benchmarks that anyone can run: `python -m benchmarks.bench_<name>`, no arguments needed."""
