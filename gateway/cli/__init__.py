"""The `bulkhead` command."""

from __future__ import annotations

from importlib.metadata import version

import click

from gateway.cli.accounts import keys, tenants
from gateway.cli.backup import backup
from gateway.cli.check import check
from gateway.cli.completion import completion
from gateway.cli.deploy import deploy, rollback
from gateway.cli.deployments import deployments
from gateway.cli.doctor import doctor
from gateway.cli.help import Sections
from gateway.cli.hosts import hosts
from gateway.cli.init import init
from gateway.cli.migrate import migrate
from gateway.cli.models import models
from gateway.cli.restore import restore
from gateway.cli.secret import secret
from gateway.cli.serving import dev, gateway, node, serve
from gateway.cli.tail import tail
from gateway.cli.triggers import triggers
from gateway.cli.usage import usage
from gateway.cli.whoami import whoami


@click.group(cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("bulkhead"), "-V", "--version", prog_name="bulkhead")
def main() -> None:
    """Bulkhead: a self-hosted, multi-tenant LLM inference gateway."""


COMMANDS = (
    *(dev, serve, gateway, node),
    *(init, check, secret, deploy, rollback, deployments),
    *(models, tenants, keys, usage),
    *(whoami, hosts, tail, doctor),
    *(backup, restore, migrate, triggers),
    completion,
)
for command in COMMANDS:
    main.add_command(command)
