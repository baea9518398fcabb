"""`bulkhead init`: a folder to start from."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import click

from gateway.cli.accounts import as_json
from gateway.cli.check import schema
from gateway.cli.options import telling
from runtime.keyring import write_once

CONFIG, SCHEMA, DEV_VARS, IGNORE = (
    "bulkhead.toml",
    "bulkhead.schema.json",
    ".dev.vars",
    ".gitignore",
)
IGNORED = (".bulkhead/", ".bulkhead-*/", ".dev.vars*")


@click.command()
@click.argument(
    "folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), required=False
)
@as_json
@telling
def init(folder: Path, as_json: bool) -> None:
    """Write a commented bulkhead.toml to FOLDER (default: this one), and what belongs beside it.

    Nothing is overwritten.
    """
    there = [name for name in (CONFIG, SCHEMA, DEV_VARS) if (folder / name).exists()]
    if there:
        raise click.ClickException(f"{folder / there[0]} is there already; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-") or "bulkhead"
    text = _template("bulkhead.toml").replace('name = "NAME"', f'name = "{name}"')
    (folder / CONFIG).write_text(text, "utf-8")
    (folder / SCHEMA).write_text(schema(), "utf-8")
    write_once(folder / DEV_VARS, _template("dev.vars").rstrip("\n"))
    _ignore(folder / IGNORE)
    if as_json:
        files = [CONFIG, SCHEMA, DEV_VARS, IGNORE]
        click.echo(json.dumps({"folder": str(folder.resolve()), "name": name, "files": files}))
        return
    click.echo(f"Wrote {CONFIG}, {SCHEMA}, {DEV_VARS} and {IGNORE} in {folder.resolve()}.")
    where = "" if folder == Path() else f"cd {folder} && "
    click.echo(f"Next: {where}bulkhead dev")


def _template(name: str) -> str:
    return (resources.files("config") / "init" / name).read_text("utf-8")


def _ignore(path: Path) -> None:
    """Add to a .gitignore what isn't in it yet: keys and state belong in no repository."""
    text = path.read_text("utf-8") if path.exists() else ""
    missing = [line for line in IGNORED if line not in text.splitlines()]
    if missing:
        gap = "\n" if text and not text.endswith("\n") else ""
        path.write_text(text + gap + "\n".join(missing) + "\n", "utf-8")
