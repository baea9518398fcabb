"""`bulkhead check`: everything that is wrong with a configuration, and nothing is started."""

from __future__ import annotations

import json
from importlib import resources

import click

from gateway.cli.accounts import as_json
from gateway.cli.options import Exit, Places, places
from runtime import settings as config
from runtime.config.fault_tree import draw
from runtime.config.report import Fault, Report
from runtime.settings import ConfigError


@click.command()
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@click.option("--dev", is_flag=True, help="As `bulkhead dev` would start it: with .dev.vars.")
@click.option("--print-schema", is_flag=True, help="Print the JSON schema for editors, and end.")
@places
@as_json
def check(strict: bool, dev: bool, print_schema: bool, places: Places, as_json: bool) -> None:
    """Check the configuration of all environments, and what the chosen one names.

    That is certificates, secrets, variables and cards; they may lie elsewhere for the others.
    Ends with 0, or with 3 if there are errors.
    """
    if print_schema:
        click.echo(schema(), nl=False)
        return
    source, report = _checked(places, dev=dev)
    if strict:
        report.make_strict()
    if as_json:
        click.echo(json.dumps(_told(source, report), ensure_ascii=False))
    elif report.errors or report.warnings:
        click.echo(draw(source, report, colour=True))
    if report.errors:
        raise click.exceptions.Exit(Exit.CONFIG)
    if not as_json:
        click.echo(f"{source} is good.")


def schema() -> str:
    """The JSON schema of the config file, as it ships."""
    return (resources.files("config") / "bulkhead.schema.json").read_text("utf-8")


def _checked(places: Places, *, dev: bool) -> tuple[str, Report]:
    try:
        settings, report = config.load(
            places.config, places.state_dir, env=places.env, variables=places.variables, dev=dev
        )
    except ConfigError as fault:
        return fault.source, fault.report
    return settings.source, report


def _told(source: str, report: Report) -> dict[str, object]:
    return {
        "source": source,
        "ok": not report.errors,
        "errors": [_fault(fault) for fault in report.errors],
        "warnings": [_fault(fault) for fault in report.warnings],
    }


def _fault(fault: Fault) -> dict[str, str]:
    return {"path": fault.path, "message": fault.message}
