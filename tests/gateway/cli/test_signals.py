"""SIGINT and SIGTERM: 130 and 143, at any moment, and without a word."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from gateway.cli import commands, ending, signals
from gateway.cli.options import Exit
from tests.stack import BULKHEAD, REPO
from tests.terminal import Terminal

PATIENCE_S = 60.0
ENDING = ((signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED))

# Modules that a command needs, and that stay in their import until a signal comes.
STUCK = """
import sys, time
sys.modules.pop("{module}", None)
class Stuck:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            print("importing", flush=True)
            while True:
                time.sleep(0.01)
sys.meta_path.insert(0, Stuck())
from gateway.cli import main
sys.argv = ["bulkhead", "tenants", "list"]
main()
"""


@pytest.mark.parametrize(("number", "code"), ENDING)
@pytest.mark.parametrize(
    "module", ["click", "gateway.cli.ending", "gateway.cli.accounts", "gateway.store.connection"]
)
def test_while_modules_are_imported(module: str, number: signal.Signals, code: Exit) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK.format(module=module)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPO,
    )  # fmt: skip
    try:
        assert process.stdout
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
    finally:
        told = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, *told) == (code, "", "")


@pytest.mark.parametrize(("number", "code"), ENDING)
def test_while_a_command_works(number: signal.Signals, code: Exit, tmp_path: Path) -> None:
    """It asks for a value unseen; the terminal shows what is typed again when it has ended."""
    terminal = Terminal(*BULKHEAD, "secret", "put", "A", "--state", str(tmp_path))
    try:
        terminal.wait_for("Value of A: ")
        while echoes(terminal):
            time.sleep(0.01)
        terminal.process.send_signal(number)
        assert terminal.process.wait(PATIENCE_S) == code
        assert echoes(terminal)
        assert terminal.text.strip() == "Value of A:"
    finally:
        terminal.close()


def echoes(terminal: Terminal) -> bool:
    return bool(termios.tcgetattr(terminal.controller)[3] & termios.ECHO)


@pytest.fixture
def ours() -> Iterator[None]:
    """Signals as a command has them, and pytest's again after."""
    before = {number: signal.getsignal(number) for number, _ in ENDING}
    hook = sys.unraisablehook
    signals.end_at_once()
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(("number", "code"), ENDING)
def test_what_works_is_tidied_up(
    number: signal.Signals, code: Exit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals._Received, "number", signal.SIGINT)
    tidied = []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(PATIENCE_S)
        finally:
            tidied.append(number)

    with pytest.raises(KeyboardInterrupt), signals.in_order():
        work()
    assert tidied == [number]
    assert signals.interrupted() == code


@pytest.mark.usefixtures("ours")
def test_a_loop_is_interrupted_as_asyncio_does_it() -> None:
    """By SIGTERM, too: the main task is cancelled, and no other is left with an exception."""
    cancelled = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(KeyboardInterrupt), signals.in_order():
        asyncio.run(work())
    assert cancelled == [True]


@pytest.mark.usefixtures("ours")
def test_one_that_is_to_be_ignored_stays_so() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.end_at_once()
    with signals.in_order():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_who_has_handlers_of_his_own_keeps_them() -> None:
    before = signal.getsignal(signal.SIGINT)
    with signals.in_order():
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("ours")
def test_one_that_python_can_t_raise_ends_it_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a finaliser: Python would print "Exception ignored in", and go on."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    passed: list[Any] = []
    monkeypatch.setattr(sys, "__unraisablehook__", passed.append)

    class Finalised:
        def __init__(self, fault: BaseException) -> None:
            self.fault = fault

        def __del__(self) -> None:
            raise self.fault

    Finalised(KeyboardInterrupt())
    assert codes[0] in (130, 143)
    Finalised(ValueError())
    assert isinstance(passed[-1].exc_value, ValueError)


@pytest.mark.parametrize(
    ("cause", "code"), [(EOFError(), Exit.FAILED), (KeyboardInterrupt(), Exit.INTERRUPTED)]
)
def test_ctrl_d_at_a_question_is_no_signal(
    cause: BaseException, code: Exit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals._Received, "number", signal.SIGINT)

    def prompted(**_: Any) -> None:
        try:
            raise cause
        except (EOFError, KeyboardInterrupt):
            raise click.Abort from None

    monkeypatch.setattr(commands.main, "main", prompted)
    assert ending.run_command() == code
