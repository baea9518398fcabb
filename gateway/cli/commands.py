"""The group of all commands; each is imported when it is asked for."""

from __future__ import annotations

import click

from gateway.cli.help import Sections
from gateway.cli.lazily import Commands
from gateway.version import version

# Where each command is. Commands that share a module are told with one idea.
MODULES = {
    **dict.fromkeys(("dev", "serve", "gateway", "node"), "serving"),
    **dict.fromkeys(("deploy", "rollback"), "deploy"),
    "tenants": "accounts",
    "keys": "api_keys",
    "eval": "evaluating",
    **{
        name: name
        for name in (
            *("init", "check", "secret", "deployments", "build", "trt", "backend", "projects"),
            *("models", "prices", "usage", "budgets", "limits", "ledger", "audit"),
            *("whoami", "hosts", "kv", "fault", "tail", "doctor"),
            *("backup", "restore", "migrate", "triggers", "completion"),
        )
    },
}
COMMANDS = Commands({name: f"gateway.cli.{module}" for name, module in MODULES.items()})


@click.group(
    cls=Sections, commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(version(), "-V", "--version", prog_name="bulkhead")
def main() -> None:
    """Bulkhead: a self-hosted, multi-tenant LLM inference gateway."""
