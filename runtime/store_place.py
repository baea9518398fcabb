"""Where an installation's store is: what the environment says wins over the config file.

Commands that need the store and nothing else of the file ask here: what is wrong elsewhere in it
is no reason not to list keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from runtime import config_file
from runtime.config import dev_vars
from runtime.config.place import Place
from runtime.config.report import Report
from runtime.config.secret_values import resolve, sources
from runtime.config.vault import Vault
from runtime.config_file import Given
from runtime.settings import ConfigError, Settings, environment, text_of


class StorePlace(Struct, frozen=True, kw_only=True):
    """A PostgreSQL database; with an empty URL, SQLite's file in the state folder."""

    url: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return "StorePlace(…)"


def store_place(place: Place, environ: Mapping[str, str] | None = None) -> StorePlace:
    """Where the store is. Raises ConfigError if the file's `[store]` can't be understood."""
    if place.store_url:
        return StorePlace(url=place.store_url)
    if isinstance(place, Settings):
        store = place.file.store
        return StorePlace(url=store.url, password=place.secrets.get(store.password_secret, ""))
    return _in_file(place, environment() if environ is None else environ)


def _in_file(place: Place, environ: Mapping[str, str]) -> StorePlace:
    report = Report()
    local = dev_vars.read(place.project, place.env, Report())
    store = config_file.store(text_of(place), place.env, Given(dev_vars=local), report)
    password = ""
    if store is not None and (name := store.password_secret):
        found = sources(environ, local, Vault(place.state_dir, place.root_secret))
        password = resolve({name: ["store.password_secret"]}, found, report).get(name, "")
    if store is None or report.errors:
        raise ConfigError(place.source, report)
    return StorePlace(url=store.url, password=password)
