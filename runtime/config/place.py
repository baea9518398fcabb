"""Which installation is meant: its config file, its environment, its state folder, its address."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

BUILT_IN = "the built-in configuration"


class Place(Struct, frozen=True, kw_only=True):
    """One installation: which file, which environment of it, and which state folder."""

    config_path: str  # empty: the built-in configuration
    state_dir: Path
    env: str = ""  # the environment of the file that was chosen; empty: its top
    root_secret: str = ""
    store_url: str = ""  # a PostgreSQL database, password and all; empty: as the file says
    admin_key: str = ""  # empty: the state folder's

    @property
    def source(self) -> str:
        """The file, as messages name it."""
        return shown(self.config_path)

    @property
    def folder(self) -> Path:
        """Where relative paths in the file start."""
        return Path(self.config_path).parent if self.config_path else Path.cwd()

    @property
    def project(self) -> Path:
        """The folder that the file speaks for."""
        return project_folder(Path(self.config_path)) if self.config_path else Path.cwd()

    def __repr__(self) -> str:  # a repr may reach a log; the secrets may not
        name = type(self).__name__
        return f"{name}(config_path={self.config_path!r}, state_dir={str(self.state_dir)!r})"


class Caller(Struct, frozen=True, kw_only=True):
    """What the environment says to a command that calls a running Bulkhead; "" where nothing."""

    url: str = ""
    api_key: str = ""
    admin_url: str = ""
    admin_key: str = ""
    ca: str = ""  # a PEM file
    client_cert: str = ""  # a PEM file, to show to who asks for one
    client_key: str = ""  # its key

    def __repr__(self) -> str:
        return f"Caller(url={self.url!r}, admin_url={self.admin_url!r})"


def shown(config_path: str) -> str:
    """A config file as messages name it: from here, if it lies below."""
    path, here = Path(config_path), Path.cwd()
    if not config_path:
        return BUILT_IN
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def project_folder(config: Path) -> Path:
    """The folder that a config speaks for: its own, or the one above a folder `config`."""
    folder = config.absolute().parent
    return folder.parent if folder.name == "config" else folder


def find_config(start: Path) -> Path | None:
    """`bulkhead.toml` or `config/bulkhead.toml`, in `start` or the nearest folder above it."""
    for folder in (start, *start.parents):
        for candidate in (folder / "bulkhead.toml", folder / "config" / "bulkhead.toml"):
            if candidate.is_file():
                return candidate
    return None
