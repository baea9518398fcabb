"""Help, mistyped words, versions, and what commands end with."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner, Result

from gateway.cli.commands import main
from gateway.cli.help import SECTIONS
from gateway.cli.options import EXIT_CODES, Exit, Told, telling
from runtime.config.report import Report
from runtime.settings import ConfigError
from tests.stack import REPO


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def commands(group: click.Group, *path: str) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name, command in group.commands.items():
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += commands(command, *path, name)
    return found


EVERY = commands(main)


def test_every_command_has_its_section() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(set(listed))
    visible = {name for name, command in main.commands.items() if not command.hidden}
    assert visible <= set(listed)
    told = run("--help").stdout
    for heading in SECTIONS:
        assert f"\n{heading}:\n" in told
    assert "\nOther:\n" not in told
    assert "..." not in told.partition("\nServe:\n")[2], "whole sentences"


@pytest.mark.parametrize(
    "path", [path for path, command in EVERY if not isinstance(command, click.Group)], ids=" ".join
)
def test_every_command_tells_our_own_errors_in_a_sentence(path: tuple[str, ...]) -> None:
    code = telling(lambda: None).__code__  # all that it wraps share it
    callback = dict(EVERY)[path].callback
    assert callback is not None
    found = inspect.unwrap(callback, stop=lambda one: one.__code__ is code)
    assert found.__code__ is code


@pytest.mark.parametrize("path", [path for path, _ in EVERY], ids=" ".join)
def test_every_command_has_help_in_sentences(path: tuple[str, ...]) -> None:
    """-h and --help; each option says what it is."""
    done = run(*path, "-h")
    assert done.exit_code == 0
    assert done.stdout == run(*path, "--help").stdout
    command = dict(EVERY)[path]
    assert command.help, path
    assert not any(line.endswith("...") for line in done.stdout.splitlines()[1:]), "whole sentences"
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help or isinstance(option.type, click.Choice), (path, option.name)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["chek"], "check"), (["tenant"], "tenants"), (["secret", "putt", "A"], "put"),
        (["check", "--strct"], "--strict"), (["serve", "--prot", "1"], "--port"),
        (["tenants", "crate", "x"], "create"),
    ],
)  # fmt: skip
def test_a_mistyped_word_is_answered_with_what_was_meant(words: list[str], meant: str) -> None:
    done = run(*words)
    assert done.exit_code == Exit.USAGE
    assert re.search(rf"Did you mean[^?]*'?{meant}'?", done.stderr)


def test_the_version() -> None:
    assert run("--version").stdout == f"bulkhead, version {version('bulkhead')}\n"
    assert run("-V").exit_code == 0


@pytest.mark.parametrize("kind", EXIT_CODES)
def test_every_fault_ends_with_its_code_and_without_a_traceback(kind: type[Exception]) -> None:
    fault = ConfigError("x", Report()) if kind is ConfigError else None

    @click.command()
    @telling
    def broken() -> None:
        """Fails."""
        if fault is not None:
            raise fault
        told = kind.__new__(kind)
        told.args = ("it broke",)
        raise told

    done = CliRunner().invoke(broken)
    assert done.exit_code == EXIT_CODES[kind]
    assert "Traceback" not in done.output


def test_a_subclass_ends_as_its_base_does() -> None:
    assert Told(FileNotFoundError(2, "No such file", "x")).exit_code == Exit.FAILED
    assert Told(FileNotFoundError(2, "No such file", "x")).message == "x: No such file"


def test_an_error_of_our_own_code_is_not_told_as_a_user_s() -> None:
    @click.command()
    @telling
    def broken() -> None:
        """Fails."""
        raise KeyError("bug")

    assert isinstance(CliRunner().invoke(broken).exception, KeyError)


def test_operating_md_has_the_exit_codes() -> None:
    text = (REPO / "docs" / "operating.md").read_text()
    rows = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert [int(row) for row in rows] == [code.value for code in Exit]
