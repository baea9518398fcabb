"""Makes sure that a model's weights lie in the state folder, fetching them once.

The fetch runs in a process of its own: it needs libraries that no gateway should load.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from msgspec import MsgspecError, Struct, json

from engines import regular
from engines.build.sources import SOURCES, is_present
from runtime.config.models import ModelSettings
from runtime.settings import Settings

PROGRESS = "fetch: "  # how the fetch begins a line about what it does


class WeightsUnavailable(Exception):
    """The weights of a model can't be had; the message says which and why."""


def folder(settings: Settings, model: ModelSettings) -> Path:
    """Where a model's weights lie."""
    return Path(model.path) if model.path else settings.state_dir / "models" / model.source


def digests(place: Path) -> dict[str, str]:
    """The SHA-256 of each file of fetched weights, as written down by the fetch. {}: not known."""
    try:
        return json.decode(regular.read(place / "source.json"), type=_Fetched).files
    except (OSError, MsgspecError):
        return {}


class _Fetched(Struct):
    files: dict[str, str] = {}


def ensure(settings: Settings) -> None:
    """Fetch what is missing, telling its progress on stderr. Raises WeightsUnavailable."""
    for model in settings.file.models:
        if model.engine == "embedded":
            ensure_of(settings, model)


def ensure_of(settings: Settings, model: ModelSettings) -> None:
    """The same for one model that has weights."""
    place = folder(settings, model)
    if model.source:
        fetched(model.source, place, model.id)
    elif not (place / "config.json").is_file():
        raise WeightsUnavailable(f"{model.id}: {place} holds no config.json")


def fetched(source: str, place: Path, name: str) -> Path:
    """The folder of a pinned source, wanted under this name. Raises WeightsUnavailable."""
    if is_present(SOURCES[source], place):
        return place
    command = [sys.executable, "-m", "engines.build.fetch", source, "--dest", str(place)]
    last = ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(PROGRESS):
                sys.stderr.write(line)
                continue
            sys.stderr.write(last)
            last = line  # held back: if the fetch fails, it is the reason
    if process.returncode != 0:
        reason = last.strip().removeprefix("error: ") or f"exit code {process.returncode}"
        raise WeightsUnavailable(f"the weights of {name} can't be had: {reason}")
    sys.stderr.write(last)
    return place
