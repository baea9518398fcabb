"""What a configuration came to, and the text that it is read from; whatever the environment says.

`runtime.settings` makes Settings of both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import msgspec

from runtime import config_file
from runtime.config import environments
from runtime.config.fault_tree import draw
from runtime.config.place import Place, shown
from runtime.config.report import Report
from runtime.config.sections import FileSettings
from runtime.deployments import Origin


class Settings(Place, frozen=True, kw_only=True):
    """Everything a process of ours is told: the place, the file, secrets by name."""

    file: FileSettings
    variables: tuple[str, ...] = ()  # "NAME:value", as the command line gave them
    text: str = ""  # of the file, which may be another by now
    dev: bool = False
    secrets: Mapping[str, str] = {}
    local_tls: str = ""  # of `dev --https`: the folder of its certificate, instead of the file's

    @property
    def folder(self) -> Path:
        """Where relative paths in the file start: the folder it lies in."""
        return Path(self.config_path).parent if self.config_path else Path.cwd()

    @property
    def origin(self) -> Origin:
        """How the text is to be read again."""
        return Origin(config_path=self.config_path, env=self.env, variables=self.variables)

    @property
    def config_hash(self) -> str:
        """Tells what the file came to, variables and environment included, from anything else."""
        return hashlib.sha256(msgspec.json.encode(self.file)).hexdigest()[:16]

    __repr__ = Place.__repr__


class ConfigError(Exception):
    """The configuration can't be used. The message lists every fault with its path."""

    def __init__(self, source: str, report: Report) -> None:
        super().__init__(draw(source, report))
        self.source = source
        self.report = report


def parse(text: bytes | str, source: str, env: str = "") -> tuple[FileSettings, Report]:
    """A text alone, without the secrets it names. Raises ConfigError with all its faults."""
    parsed = config_file.parse(text, env)
    if parsed.file is None:
        raise ConfigError(source, parsed.report)
    return parsed.file, parsed.report


def text_of(place: Place) -> bytes | str:
    """The config file's text, as it is now. Raises ConfigError if there is no such file."""
    return read(Path(place.config_path)) if place.config_path else built_in()


def read(path: Path) -> bytes:
    """The bytes of a config file. Raises ConfigError if there is none, or what gives them once."""
    if not path.is_file():
        report = Report()
        report.error("", _not_a_file(path))
        raise ConfigError(shown(str(path)), report)
    return path.read_bytes()


def _not_a_file(path: Path) -> str:
    if not path.exists():
        return "no such file"
    if path.is_dir():
        return "a folder: name the file in it"
    return "a pipe or a device: write it to a file, which is read again, by other processes too"


def built_in() -> str:
    """The configuration of who has none."""
    return (resources.files("config") / "bulkhead.toml").read_text("utf-8")


def check_environment(text: bytes | str, chosen: str, path: Path | None) -> None:
    """An environment that isn't there would get a state folder of its own."""
    report = Report()
    data = config_file.toml(text, Report())
    if data is not None or not (chosen == "" or environments.is_name(chosen)):
        environments.check_choice(data or {}, chosen, report)
    if report.errors:
        raise ConfigError(shown(str(path or "")), report)
