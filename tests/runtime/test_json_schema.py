"""The schema for editors agrees with the check, as far as a schema can."""

from __future__ import annotations

import datetime
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from runtime.config import json_schema
from runtime.config_file import parse
from tests.runtime.test_config_faults import ATTACHED, BROKEN, MODEL

REPO = Path(__file__).resolve().parent.parent.parent
SCHEMA = json.loads((REPO / "config" / "bulkhead.schema.json").read_text())
FULL = """
"$schema" = "./bulkhead.schema.json"
name = "${NAME}"
zzz = "unknown keys are the check's business"
[vars]
NAME = "x"
PORT = 1
[server]
port = "${PORT}"
tls = { cert = "c", key = "k", min_version = "1.3" }
[triggers]
crons = [{ cron = "0 3 * * *", run = "backup", to = "b", keep = "${KEEP}" }]
[[models]]
id = "m"
engine = "fake"
released = 2026-11-01
lifecycle = { status = "beta", shutdown_at = 2027-01-01 }
price = { input = "0.10" }
options = { step_s = 0.1 }
[env.staging]
server = { port = 2 }
vars = { NAME = "y" }
"""
# What a schema of shapes can't know: rules across keys, files, secrets, variables.
BEYOND = {
    "an id used twice": True, "an id used thrice": True, "an attached engine without url": True,
    "a url of another scheme": True, "keys of another engine": True,
    "more hosts kept than allowed": True, "weights from nowhere": True,
    "weights from two places": True, "a secret that isn't there": True,
    "a card that isn't there": True, "a character that no name has": True,
    "a certificate without its key": True,
    "a user of a Redis without a password": True,
    "an open node": True, "a remote node without TLS": True, "a bad cron expression": True,
    "a cron with seconds": True, "jobs that lack what they need": True,
    "warming what isn't there": True, "two tenants of one name": True,
    "a route without a path": True, "a required secret that isn't there": True,
    "a variable that isn't there": True, "a variable of a wrong type": True,
    "a webhook that can't be called": True, "a webhook without a secret": True,
    "a webhook whose secret isn't there": True,
    "two issuers of one name": True, "an issuer whose keys are nowhere": True,
    "tenants of a claim that isn't named, and keys that aren't there": True,
    "a Redis by HTTP": True, "a Redis at no port": True, "a Redis in no database": True,
    "a Redis with its password": True, "a Redis whose password isn't there": True,
    "limits of one model twice, and of one that isn't there": True,
    "no number": True, "a share that is no number": True,  # JSON has no nan
    "an id with a line end": True,  # Python's $ lets it pass, an editor's doesn't
}  # fmt: skip


def validates(text: str) -> bool:
    validator = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
    return bool(validator.is_valid(as_json(tomllib.loads(text))))


def as_json(data: Any) -> Any:
    """TOML's dates as an editor's validator sees them."""
    if isinstance(data, dict):
        return {key: as_json(value) for key, value in data.items()}
    if isinstance(data, list):
        return [as_json(value) for value in data]
    return data.isoformat() if isinstance(data, datetime.date) else data


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", ["config/bulkhead.toml", "config/init/bulkhead.toml"])
def test_what_ships_validates(name: str) -> None:
    text = (REPO / name).read_text()
    assert text.startswith("#:schema ./bulkhead.schema.json\n")
    assert validates(text.replace('"NAME"', '"name"'))


@pytest.mark.parametrize("text", [FULL, MODEL, ATTACHED, "[env.a]\n"])
def test_good_files_validate(text: str) -> None:
    """A file of environments alone is one too."""
    assert validates(text)


@pytest.mark.parametrize(
    ("name", "text"), [b[:2] for b in BROKEN if "TOML" not in str(b[2].get(""))],
    ids=[b[0] for b in BROKEN if "TOML" not in str(b[2].get(""))],
)  # fmt: skip
def test_broken_files_don_t_unless_it_takes_more_than_a_schema(name: str, text: str) -> None:
    assert validates(text) is BEYOND.get(name, False)


def test_every_key_has_a_description() -> None:
    todo = [SCHEMA, *SCHEMA["definitions"].values()]
    for definition in todo:
        for key, schema in definition["properties"].items():
            assert key == "$schema" or schema["description"], key


def test_a_default_is_a_value_that_passes() -> None:
    """What an editor would fill in is accepted by the check."""
    properties = SCHEMA["properties"]
    assert properties["name"]["default"] == "bulkhead"
    server = SCHEMA["definitions"]["ServerSettings"]["properties"]
    text = f"[server]\nport = {server['port']['default']}\n" + MODEL
    assert parse(text).report.errors == []


def test_the_docs_are_read_as_they_are_written() -> None:
    rows = json_schema.tables("## `[a]`, in seconds\n\n| key | default | is |\n|---|---|---|\n"
                              "| `x`, `y` | `1`, `2` | both |\n| `z` | | alone |\n")  # fmt: skip
    assert rows["`[a]`"] == {
        "x": ("`1`, `2`", "both"), "y": ("`1`, `2`", "both"), "z": ("", "alone"),
    }  # fmt: skip
