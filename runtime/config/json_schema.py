"""The JSON schema of the config file, for editors: types from the structs, words from the docs.

`python -m runtime.config.json_schema` writes `config/bulkhead.schema.json`; a test says when.
A schema can't say all that the check does: an unknown key passes here, since it is a warning.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from engines.trtllm.settings import TrtServers, TrtSettings
from runtime.config import (
    alerts,
    attached,
    environments,
    issuers,
    lifecycle,
    limits,
    models,
    observability,
    sections,
    store,
    tenants,
    tls,
)
from runtime.config.variables import NAME

REPO = Path(__file__).resolve().parents[2]
DOCS = REPO / "docs" / "config.md"
SCHEMA = REPO / "config" / "bulkhead.schema.json"

# Where docs/config.md describes the keys of each struct: the first words of a heading.
HEADINGS: dict[type[Struct], str] = {
    sections.FileSettings: "Top level",
    sections.ServerSettings: "`[server]`",
    tls.ServerTls: "`[server.tls]`",
    sections.AdminSettings: "`[admin]`",
    store.StoreSettings: "`[store]`",
    limits.LimitSettings: "`[limits]`",
    limits.RateSettings: "`[limits.per_tenant]`",
    limits.RedisSettings: "`[limits.redis]`",
    sections.RelaySettings: "`[relay]`",
    sections.HostSettings: "`[hosts]`",
    sections.NodeSettings: "`[node]`",
    sections.RemoteNodeSettings: "`[[nodes]]`",
    tls.ClientTls: "`[nodes.tls]`",
    observability.ObservabilitySettings: "`[observability]`",
    observability.OtelSettings: "`[observability.otel]`",
    observability.PayloadSettings: "`[observability.payloads]`",
    alerts.AlertSettings: "`[alerts]`",
    sections.ExportSettings: "`[export]`",
    sections.TriggerSettings: "`[triggers]`",
    sections.CronSettings: "`[[triggers.crons]]`",
    sections.SecretSettings: "`[secrets]`",
    tenants.TenantSettings: "`[[tenants]]`",
    tenants.ContractSettings: "`[[tenants.prices]]`",
    limits.TenantRateSettings: "`[[tenants.limits]]`",
    issuers.IssuerSettings: "`[[issuers]]`",
    models.ModelSettings: "`[[models]]`",
    attached.AttachedServer: "`[[models.servers]]`",
    TrtSettings: "`[models.trt]`",
    TrtServers: "`[models.trt.context]`",
    models.PriceSettings: "`[models.price]`",
    models.DatedPriceSettings: "`[[models.prices]]`",
    lifecycle.Lifecycle: "`[models.lifecycle]`",
}
REFERENCE = {"type": "string", "pattern": rf"\$\{{{NAME}\}}"}
ENVIRONMENT = "Environment"


def build(docs: str) -> dict[str, Any]:
    """The schema, with the descriptions that a text of docs/config.md has."""
    (_,), definitions = msgspec.json.schema_components(
        [sections.FileSettings], ref_template="#/definitions/{name}"
    )
    rows = tables(docs)
    for struct, heading in HEADINGS.items():
        definition = definitions[struct.__name__]
        for key, schema in definition["properties"].items():
            definition["properties"][key] = _property(schema, rows[heading][key][1])
    top = definitions.pop("FileSettings")
    top["properties"]["models"]["minItems"] = 1
    definitions[ENVIRONMENT] = {
        "title": ENVIRONMENT,
        "description": "Keys that stand in place of the top's; vars and secrets are not inherited.",
        "type": "object",
        "properties": top["properties"],
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Bulkhead's configuration",
        "type": "object",
        "properties": {"$schema": {"type": "string"}, "env": _environments(), **top["properties"]},
        "anyOf": [{"required": ["models"]}, {"required": ["env"]}],
        "definitions": definitions,
    }


def tables(docs: str) -> dict[str, dict[str, tuple[str, str]]]:
    """The tables of keys in a text: heading, key, and then its default and what it is.

    A heading counts up to its first comma or colon. A row may be about several keys.
    """
    found: dict[str, dict[str, tuple[str, str]]] = {}
    rows: dict[str, tuple[str, str]] = {}
    for line in docs.splitlines():
        if line.startswith("#"):
            rows = found.setdefault(re.split(r"[,:]", line.lstrip("# "))[0], {})
        elif row := re.fullmatch(r"\| (`.+?`) \| ?(.*?) ?\| (.+) \|", line):
            for key in re.findall(r"`([^`]+)`", row[1]):
                rows[key] = (row[2], row[3])
    return found


def text(docs: str) -> str:
    """The schema as the file holds it."""
    return json.dumps(build(docs), indent=2, ensure_ascii=False) + "\n"


def _environments() -> dict[str, Any]:
    return {
        "description": "Environments: [env.NAME], chosen with --env.",
        "type": "object",
        "propertyNames": {"pattern": f"^{environments.NAME}$"},
        "additionalProperties": {"$ref": f"#/definitions/{ENVIRONMENT}"},
    }


def _property(schema: dict[str, Any], description: str) -> dict[str, Any]:
    """One key: a value of its type, or a text with `${NAME}`. What a kind says comes last."""
    schema = _plain(schema)
    kind = schema.pop("description", "")
    described = {"description": f"{description} ({kind})" if kind else description}
    if "$ref" in schema:
        schema.pop("default", None)  # each key below has its own
        return described | {"allOf": [schema]}
    if schema.get("type") == "array" and "items" in schema:
        schema["items"].pop("description", None)
        if "$ref" not in schema["items"]:
            schema["items"] = _or_reference(schema["items"])
        return described | schema
    default = {"default": schema.pop("default")} if "default" in schema else {}
    return described | _or_reference(schema) | default


def _or_reference(schema: dict[str, Any]) -> dict[str, Any]:
    is_any_text = schema == {"type": "string"}
    if is_any_text or schema.get("type") == "object":
        return schema
    return {"anyOf": [schema, REFERENCE]}


def _plain(schema: Any) -> Any:
    """Regular expressions as JSON schema has them."""
    if isinstance(schema, dict):
        plain = {key: _plain(value) for key, value in schema.items()}
        if isinstance(plain.get("pattern"), str):
            plain["pattern"] = plain["pattern"].replace(r"\Z", "$")
        return plain
    return [_plain(value) for value in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    SCHEMA.write_text(text(DOCS.read_text("utf-8")), "utf-8")
