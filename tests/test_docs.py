"""The docs name everything there is, and nothing that isn't."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import msgspec
import pytest

from engines.embedded.config import EngineConfig
from engines.fake import FakeEngine
from gateway import errors, fields as wire, schema
from gateway.cli import main
from gateway.v1 import ROUTES
from runtime import cards, lifecycle, models, sections
from runtime.host_wire import HostRequest

REPO = Path(__file__).resolve().parent.parent
DOCS = REPO / "docs"
PACKAGES = "gateway|runtime|engines|tests|benchmarks|config|docs"
EXTRA_CODES = {"invalid_json", "missing_required_parameter", "missing_api_key"}


def doc(name: str) -> str:
    return (DOCS / name).read_text()


SECTIONS = [
    sections.FileSettings,
    sections.ServerSettings,
    sections.RelaySettings,
    sections.HostSettings,
    sections.AdminSettings,
    sections.NodeSettings,
    sections.RemoteNodeSettings,
    sections.ServerTls,
    sections.LimitSettings,
    sections.ObservabilitySettings,
    sections.TriggerSettings,
    sections.CronSettings,
    sections.SecretSettings,
    sections.TenantSettings,
    sections.ContractSettings,
    models.ModelSettings,
    models.PriceSettings,
    models.ClientTls,
    lifecycle.Lifecycle,
    cards.Card,
    cards.Architecture,
    cards.License,
    cards.CardSource,
]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_in_config_md(section: type[msgspec.Struct]) -> None:
    text = doc("config.md")
    for field in msgspec.structs.fields(section):
        assert f"| `{field.encode_name}`" in text or f", `{field.encode_name}`" in text, field.name


def test_every_engine_option_is_in_config_md() -> None:
    text = doc("config.md")
    for option in fields(EngineConfig):
        assert f"| `{option.name}` |" in text
    for option in fields(FakeEngine):
        assert option.name.startswith("_") or option.name == "tokenizer" or option.name in text


def test_every_variable_is_in_config_md() -> None:
    source = (REPO / "runtime" / "settings.py").read_text()
    for name in set(re.findall(r"BULKHEAD_[A-Z_]+", source)):
        assert name in doc("config.md")


def test_every_error_is_in_errors_md_with_its_status() -> None:
    text = doc("errors.md")
    for row in errors.TABLE.values():
        assert f"| `{row.code}` | {row.status} | {row.type} |" in text
    for code in EXTRA_CODES:
        assert f"| `{code}` |" in text


def test_every_row_of_errors_md_exists() -> None:
    known = {row.code for row in errors.TABLE.values()} | EXTRA_CODES
    assert set(re.findall(r"^\| `(\w+)` \| \d+", doc("errors.md"), re.MULTILINE)) == known


def test_every_route_and_field_is_in_api_md() -> None:
    text = doc("api.md")
    for path, (method, _) in ROUTES.items():
        assert f"`{method} {path}`" in text
    for kind in (wire.ChatFields, wire.CompletionFields):
        for field in msgspec.structs.fields(kind):
            assert f"`{field.encode_name}" in text, field.name


def test_every_command_is_in_operating_md() -> None:
    text = doc("operating.md")
    for name, command in main.commands.items():
        subcommands = command.commands if isinstance(command, click.Group) else {}
        assert f"bulkhead {name}" in text
        for sub in subcommands:
            assert f"{name} {sub}" in text


def test_files_that_docs_name_exist() -> None:
    pages = [*DOCS.rglob("*.md"), REPO / "README.md"]
    for page in pages:
        for name in re.findall(rf"`((?:{PACKAGES})/[\w./-]+)`", page.read_text()):
            assert (REPO / name).exists(), f"{page.name} names {name}"


def test_architecture_md_lists_every_module() -> None:
    """A new file has to be given its line."""
    text = doc("architecture.md")
    for package in ("gateway", "runtime", "engines/embedded"):
        for path in (REPO / package).glob("*.py"):
            if not path.name.startswith("__"):
                assert f"`{path.name}`" in text, path


def test_the_host_takes_what_the_gateway_sends() -> None:
    """Both ends of the boundary agree on the fields of a request."""
    everything = schema.Ask(
        operation="chat",
        model="m",
        messages=[schema.Turn("user", "x")],
        prompt="x",
        max_tokens=1,
        temperature=1.0,
        top_p=1.0,
        seed=1,
        stop=["x"],
        stream=True,
    )
    assert set(everything.engine_body()) == set(HostRequest.__struct_fields__)
