"""The `bulkhead` command."""

from __future__ import annotations

from importlib.metadata import version

import click

from gateway.cli.accounts import keys, tenants
from gateway.cli.deploy import deploy, rollback
from gateway.cli.deployments import deployments
from gateway.cli.serving import dev, gateway, node, serve
from gateway.cli.usage import usage


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("bulkhead"), "-V", "--version", prog_name="bulkhead")
def main() -> None:
    """Bulkhead: a self-hosted, multi-tenant LLM inference gateway."""


for command in (dev, serve, gateway, node, deploy, rollback, deployments, tenants, keys, usage):
    main.add_command(command)
