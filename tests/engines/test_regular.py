"""What a configuration names is read only if it is a file: a pipe would be waited for, for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engines import regular
from engines.api import EngineError
from engines.build.record import key_of
from engines.build.shape import UnsuitableModel, read_json
from engines.build.sources import SOURCES, is_present
from engines.embedded.checkpoint import weight_files
from engines.embedded.config import ModelConfig
from engines.prompt_ids import load
from engines.trtllm import bf16_view
from gateway.identity.key_fetch import fetch_of
from gateway.identity.key_source import FetchFailed
from runtime import weights
from runtime.config.issuers import IssuerSettings
from runtime.config.tls import ServerTls
from runtime.config_file import parse
from runtime.tls import certificates


@contextmanager
def pipe(path: Path) -> Iterator[None]:
    """One whose end whoever opens it is shown at once: a fault then fails, and doesn't hang."""
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: os.close(os.open(path, os.O_WRONLY)), daemon=True)
    writer.start()
    try:
        yield
    finally:
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # lets the thread go
        writer.join()
        os.close(reader)


def card(folder: Path) -> None:
    model = '[[models]]\nid = "m"\nengine = "fake"\ncard = "c.toml"\n'
    (fault,) = parse(model, "", folder=folder).report.errors
    raise ValueError(fault.message)


def certificate(folder: Path) -> None:
    found = certificates.read(ServerTls(cert="cert.pem", key="cert.pem"), folder)
    raise ValueError(found.errors[0][1])


@pytest.mark.parametrize(
    ("name", "opened", "error"),
    [
        ("x", lambda folder: regular.read(folder / "x"), OSError),
        ("tokenizer.json", lambda folder: load(str(folder)), EngineError),
        ("config.json", ModelConfig.from_folder, EngineError),
        ("config.json", lambda folder: read_json(folder / "config.json"), UnsuitableModel),
        ("a.safetensors", weight_files, EngineError),
        ("c.toml", card, ValueError),
        ("cert.pem", certificate, ValueError),
    ],
)
def test_a_pipe_is_refused_and_not_waited_for(
    name: str, opened: Callable[[Path], object], error: type[Exception], tmp_path: Path
) -> None:
    with pipe(tmp_path / name), pytest.raises(error, match="no regular file"):
        opened(tmp_path)


async def test_a_key_set_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    settings = IssuerSettings(issuer="https://x", audiences=("y",), jwks_file="keys.json")
    with pipe(tmp_path / "keys.json"), pytest.raises(FetchFailed, match="no regular file"):
        await fetch_of(settings, tmp_path)()


def test_records_that_are_pipes_tell_nothing(tmp_path: Path) -> None:
    with pipe(tmp_path / "build.json"):
        assert key_of(tmp_path) == ""
    with pipe(tmp_path / "source.json"):
        assert weights.digests(tmp_path) == {}
        assert not is_present(next(iter(SOURCES.values())), tmp_path)
    with pipe(tmp_path / "config.json"):
        assert bf16_view.changed(tmp_path) == {}


def test_devices_and_folders_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no regular file"):
        regular.read(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        regular.read(tmp_path)
