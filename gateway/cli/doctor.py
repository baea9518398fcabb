"""`bulkhead doctor`: what is wrong here, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from gateway.cli.accounts import as_json
from gateway.cli.options import Exit, Places, locate, places
from gateway.doctor.checks import examine
from gateway.doctor.finding import Finding, Patient
from gateway.live.words import count
from runtime import settings as config
from runtime.config.place import Place
from runtime.settings import ConfigError

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}
NAME_WIDTH = 11


@click.command()
@places
@as_json
@click.pass_context
def doctor(context: click.Context, as_json: bool, places: Places) -> None:
    """Look at this machine, the configuration, the state folder, and what runs.

    Changes nothing. Exit code 1 if anything doesn't work.
    """
    findings: list[Finding] = []
    for finding in examine(patient(places)):
        findings.append(finding)
        if not as_json:
            click.echo(line(finding))
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False))
    else:
        told = (count(len(findings), "check"), count(errors, "error"), count(warnings, "warning"))
        click.echo(f"\n{', '.join(told)}.")
    if errors:
        context.exit(Exit.FAILED)


def patient(places: Places) -> Patient:
    """What is to be looked at, be its config file as faulty as it may."""
    try:
        settings, report = config.load(
            places.config, places.state_dir, env=places.env, variables=places.variables, dev=True
        )
    except ConfigError as fault:
        return Patient(_place(places), None, fault.report)
    return Patient(settings, settings, report)


def _place(places: Places) -> Place:
    try:
        return locate(places)
    except ConfigError:  # not even its environments can be read; the state folder may be all right
        return config.locate(places.config, places.state_dir, env="")


def line(finding: Finding) -> str:
    """For people."""
    mark, colour = MARKS[finding.level]
    told = f"{click.style(mark, fg=colour)} {finding.check:<{NAME_WIDTH}} {finding.text}"
    return (
        f"{told}\n  {'':<{NAME_WIDTH}} {click.style('→', dim=True)} {finding.todo}"
        if (finding.todo)
        else told
    )
