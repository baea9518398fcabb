"""How a command ends: its exit code, and what is said of faults that no command of ours tells."""

from __future__ import annotations

import threading

import click

from gateway.cli import signals, streams
from gateway.cli.commands import main

PROGRAM = "bulkhead"
FAILED = 1


def run() -> int:
    """Do what the command line says; the exit code."""
    threading.excepthook = _in_thread
    code = run_command()
    try:
        streams.finish()
    except OSError as fault:
        code = code or _told(fault)
    return code


def run_command() -> int:
    """The command alone; its answer may not be written yet."""
    try:
        return int(main.main(prog_name=PROGRAM, standalone_mode=False) or 0)
    except click.ClickException as fault:
        fault.show()
        return fault.exit_code
    except click.Abort as fault:
        if isinstance(fault.__context__, KeyboardInterrupt):
            return signals.interrupted()
        click.echo("Aborted.", err=True)
        return FAILED
    except OSError as fault:  # of --help and the like, before or after a command
        return _told(fault)


def _in_thread(args: threading.ExceptHookArgs) -> None:
    """What a thread couldn't write (the key that `dev` prints) is told as anywhere else."""
    if isinstance(args.exc_value, OSError) and args.exc_value.filename == streams.NAME:
        _told(args.exc_value)
    else:
        threading.__excepthook__(args)


def _told(fault: OSError) -> int:
    if not isinstance(fault, BrokenPipeError):  # who reads us has had enough
        from gateway.cli.options import Told  # --help needs none of it

        Told(fault).show()
    return FAILED
