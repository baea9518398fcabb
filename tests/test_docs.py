"""The docs name everything there is, and nothing that isn't."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import click
import msgspec
import pytest

from engines.embedded.config import EngineConfig
from engines.fake import FakeEngine
from gateway import errors, fields as wire, schema
from gateway.admin import problems
from gateway.admin.api import AdminApi
from gateway.admin.hub import EventHub
from gateway.admin.node_client import NodeClient
from gateway.admin.status import Process
from gateway.cli.commands import main
from gateway.v1 import ROUTES
from runtime.config import cards, json_schema, sections
from runtime.host.wire import HostRequest
from runtime.settings import Settings

REPO = Path(__file__).resolve().parent.parent
DOCS = REPO / "docs"
PACKAGES = "gateway|runtime|engines|tests|benchmarks|config|docs"
EXTRA_CODES = {"invalid_json", "invalid_body", "missing_required_parameter", "missing_api_key"}


def doc(name: str) -> str:
    return (DOCS / name).read_text()


SECTIONS = json_schema.HEADINGS | {
    cards.Card: "A card",
    cards.Architecture: "A card's `[architecture]`",
    cards.License: "A card's `[license]`",
    cards.CardSource: "A card's `[source]`",
}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_config_md_has_each_key_in_its_section_and_no_other(section: type[msgspec.Struct]) -> None:
    rows = json_schema.tables(doc("config.md"))[SECTIONS[section]]
    assert set(rows) == {field.encode_name for field in msgspec.structs.fields(section)}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_config_md_tells_the_defaults_that_are(section: type[msgspec.Struct]) -> None:
    """Where its column has a value; where it has words, they are believed."""
    rows = json_schema.tables(doc("config.md"))[SECTIONS[section]]
    beside: dict[str, list[str]] = {}
    for key, (default, _) in rows.items():
        beside.setdefault(default, []).append(key)
    for field in msgspec.structs.fields(section):
        told = rows[field.encode_name][0]
        assert (told == "required") == field.required, field.name
        if not re.fullmatch(r"`[^`]+`(, `[^`]+`)*", told):
            continue
        values = re.findall(r"`([^`]+)`", told)
        value = values[beside[told].index(field.encode_name)] if len(values) > 1 else values[0]
        assert value == as_toml(field), field.name


def as_toml(field: msgspec.structs.FieldInfo) -> str:
    has_factory = field.default_factory is not msgspec.NODEFAULT
    value = field.default_factory() if has_factory else field.default
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    if isinstance(value, datetime.date):
        return value.isoformat()
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def test_every_struct_of_the_config_has_its_section() -> None:
    reached: set[type[msgspec.Struct]] = set()
    todo: list[type[msgspec.Struct]] = [sections.FileSettings]
    while todo:
        struct = todo.pop()
        reached.add(struct)
        for hint in get_type_hints(struct).values():
            kinds = [hint, *get_args(hint)]
            todo += [k for k in kinds if isinstance(k, type) and issubclass(k, msgspec.Struct)]
    assert reached == set(json_schema.HEADINGS)


def test_the_schema_for_editors_is_current() -> None:
    """After a change: python -m runtime.config.json_schema."""
    assert json_schema.SCHEMA.read_text() == json_schema.text(doc("config.md"))


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


def unused() -> Settings:
    raise AssertionError


def test_every_admin_route_and_problem_is_in_the_docs(tmp_path: Path) -> None:
    process = Process(command="", pid=0, began=0, began_monotonic=0)
    made = AdminApi(unused, NodeClient(tmp_path), EventHub(tmp_path), process)
    for route in made.routes():
        for method in (route.methods or set()) - {"HEAD"}:
            assert f"`{method} {route.path.replace(':path', '')}`" in doc("api.md")
    known = {row.name: row.status for row in problems.TABLE.values()}
    rows = re.findall(r"^\| `([a-z]+(?:-[a-z]+)+)` \| (\d+)", doc("errors.md"), re.MULTILINE)
    assert {name: int(status) for name, status in rows} == known


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


MAPPED = (
    "gateway/budgets",
    *("gateway", "gateway/relay", "gateway/catalog", "gateway/processes", "gateway/backups"),
    *("gateway/crons", "gateway/identity", "runtime", "runtime/config", "runtime/deploy"),
    *(
        "runtime/node",
        "runtime/host",
        "runtime/tls",
        "runtime/trt",
        "engines/embedded",
        "engines/build",
    ),
)


def test_architecture_md_lists_every_module() -> None:
    """A new file has to be given its line."""
    text = doc("architecture.md")
    for package in MAPPED:
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


def test_decisions_are_numbered_one_after_another() -> None:
    pages = sorted((DOCS / "decisions").glob("*.md"))
    for number, page in enumerate(pages, start=1):
        assert page.name.startswith(f"{number:04}-")
        assert page.read_text().startswith(f"# {number}. ")


def test_benchmarks_md_names_each_script_and_no_other() -> None:
    named = set(re.findall(r"^\| `(bench_\w+\.py)`", doc("benchmarks.md"), re.MULTILINE))
    assert named == {script.name for script in (REPO / "benchmarks").glob("bench_*.py")}
