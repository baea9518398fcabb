"""The list of commands in `bulkhead --help`, in groups that say what one would be doing."""

from __future__ import annotations

from collections.abc import Iterable

import click

SECTIONS = {
    "Serve": ("dev", "serve", "gateway", "node"),
    "Configure": ("init", "check", "secret", "deploy", "rollback", "deployments"),
    "Weights": ("build", "eval", "trt"),
    "Tenants and billing": (
        *("tenants", "projects", "keys", "prices", "budgets", "limits"),
        *("ledger", "audit", "usage", "models"),
    ),
    "Operate": (
        *("whoami", "hosts", "kv", "backend", "fault", "tail", "doctor"),
        *("backup", "restore", "migrate", "triggers", "completion"),
    ),
}
SENTENCE = 200  # characters: longer than any command's first sentence


class Sentences(click.Group):
    """A group whose help lists its commands, each with its whole first sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        self.write_section(ctx, formatter, "Commands", self.list_commands(ctx))

    def write_section(
        self, ctx: click.Context, formatter: click.HelpFormatter, heading: str, names: Iterable[str]
    ) -> None:
        """Those of these commands that aren't hidden, under a heading; nothing if there is none."""
        width = max(map(len, self.commands), default=0)
        rows = [
            (name.ljust(width), command.get_short_help_str(SENTENCE))
            for name in names
            if (command := self.get_command(ctx, name)) and not command.hidden
        ]
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


class Sections(Sentences):
    """A group whose help lists its commands by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        listed = {name for names in SECTIONS.values() for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in listed)
        for heading, names in (*SECTIONS.items(), ("Other", others)):
            self.write_section(ctx, formatter, heading, names)
