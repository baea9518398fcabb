"""Has an artefact built from a model: finds its source, and runs the builder beside us.

The builder is a process of its own: it needs torch, which no gateway should load.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from msgspec import MsgspecError, Struct, json

from engines.build.sources import SOURCES
from engines.extras import how_to_install
from runtime import weights
from runtime.settings import Settings, environment


class BuildFailed(Exception):
    """Nothing was built; the message says why."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be built."""

    model: str  # the id of a configured model, a pinned source, or a folder
    weights: str
    kv: str
    group: int
    quantizer: str
    calibration: Path | None = None  # None: the text that ships
    out: Path | None = None  # None: in the state folder, under a name that tells all this


class Step(Struct):
    """How far the builder is: `done` of `of` in a step of that name."""

    step: str
    done: int
    of: int


def build(settings: Settings, wish: Wish, tell: Callable[[Step], None]) -> Path:
    """The artefact's folder, built or there already. Raises BuildFailed or WeightsUnavailable."""
    if find_spec("torch") is None:
        raise BuildFailed(f"building needs torch, which isn't here: {how_to_install('torch')}")
    if wish.quantizer == "modelopt" and find_spec("modelopt") is None:
        raise BuildFailed(f"ModelOpt isn't here: {how_to_install('modelopt')}")
    source = source_folder(settings, wish.model)
    out = (wish.out or settings.state_dir / "models" / name_of(wish)).absolute()
    for step in _run(_command(wish, source, out)):
        tell(step)
    return out


def source_folder(settings: Settings, model: str) -> Path:
    """Where the weights of what was named lie, fetched if they are pinned. Raises BuildFailed."""
    for one in settings.file.models:
        if one.id == model and one.engine == "embedded":
            weights.ensure_of(settings, one)
            return weights.folder(settings, one).absolute()
    if model in SOURCES:
        return weights.fetched(model, settings.state_dir / "models" / model, model)
    if (Path(model) / "config.json").is_file():
        return Path(model).absolute()
    known = ", ".join([one.id for one in settings.file.models if one.engine == "embedded"])
    raise BuildFailed(
        f"{model!r} is no embedded model of the configuration ({known or 'it has none'}), "
        f"no pinned source ({', '.join(SOURCES)}), and no folder with a config.json"
    )


def name_of(wish: Wish) -> str:
    """What an artefact is called where nobody says."""
    group = f"-g{wish.group}" if wish.weights != "bf16" else ""
    return f"{called(wish.model)}-{wish.weights}{group}-{wish.kv}-kv"


def called(model: str) -> str:
    """An id, or the name of a folder, however it was written."""
    return Path(model).name if Path(model).name not in ("", "..") else Path(model).resolve().name


def _command(wish: Wish, source: Path, out: Path) -> list[str]:
    command = [sys.executable, "-m", "engines.build.make", "--followed", str(source)]
    command += ["--out", str(out)]
    command += ["--weights", wish.weights, "--kv", wish.kv, "--group", str(wish.group)]
    command += ["--quantizer", wish.quantizer]
    if wish.calibration:
        command += ["--calibration", str(wish.calibration)]
    return command


def _run(command: list[str]) -> Iterator[Step]:
    env = dict(environment(), OMP_WAIT_POLICY="PASSIVE")  # threads that spin hold others up
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,  # a pipe would fill up meanwhile
        subprocess.Popen(  # noqa: S603 - our own module
            command,
            stdin=subprocess.PIPE,  # its end is the builder's: it doesn't outlive us
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            env=env,
            start_new_session=True,  # a Ctrl-C at the terminal is ours: we end it
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                try:
                    yield json.decode(line, type=Step)
                except MsgspecError:
                    continue  # a library's own words
            process.wait()
        finally:
            process.kill()  # what it has finished is kept for the next run
        if process.returncode != 0:
            errors.seek(0)
            raise BuildFailed(_reason(process.returncode, errors.read().strip()))


def _reason(code: int, said: str) -> str:
    if code == -signal.SIGBUS:
        return "the source's files became shorter while they were read"
    if code < 0:
        return (
            f"the process that builds was killed (signal {-code}): perhaps memory ran out. "
            "What it has finished is kept: build again to go on there"
        )
    return said.splitlines()[-1].removeprefix("error: ") if said else f"exit code {code}"
