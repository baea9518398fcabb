"""`bulkhead completion`: a script by which a shell completes our command line."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gateway.cli.options import telling

PROGRAM = "bulkhead"
VARIABLE = "_BULKHEAD_COMPLETE"  # click's name for it: the script asks us through it


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@telling
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands, options, models, tenants and keys.

    \b
    bash:  bulkhead completion bash > ~/.local/share/bash-completion/completions/bulkhead
    zsh:   echo 'source <(bulkhead completion zsh)' >> ~/.zshrc   (after compinit)
    fish:  bulkhead completion fish > ~/.config/fish/completions/bulkhead.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "the choices are click's"
    click.echo(kind(context.find_root().command, {}, PROGRAM, VARIABLE).source())
