"""The native thread pool under ThreadSanitizer: every item once, in its own round.

The program is `pool_stress.cpp`. `benchmarks/bench_pool.py` looks at the pool's speed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[2] / "engines" / "native"
ROUNDS = 100_000
THREADS = [1, 2, 4, 9]  # more than there are cores, so that some are always late


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler to build the pool with")
    built = tmp_path_factory.mktemp("pool") / "pool_stress"
    sources = [str(NATIVE / "pool.cpp"), str(HERE / "pool_stress.cpp")]
    flags = ["-std=c++20", "-O2", "-g", "-fsanitize=thread", "-Wall", "-Wextra", "-pthread"]
    command = [compiler, *flags, f"-I{NATIVE}", *sources, "-o", str(built)]
    subprocess.run(command, check=True, timeout=300)
    return built


@pytest.mark.slow
@pytest.mark.parametrize("threads", THREADS)
def test_every_item_runs_once_in_its_round(program: Path, threads: int) -> None:
    done = subprocess.run(
        [program, str(threads), str(ROUNDS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    others = int(done.stdout.split()[0])
    assert (others > 0) == (threads > 1), done.stdout
