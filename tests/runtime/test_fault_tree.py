"""A report as people see it."""

from __future__ import annotations

import pytest

from runtime.config.fault_tree import draw
from runtime.config.report import Fault, Report, join, split

REPORT = Report(
    errors=[
        Fault("", "not right"),
        Fault("server.port", "too big"),
        Fault("server.tls.cert", "gone"),
        Fault("server.tls.cert", "old"),
        Fault("models[0]", "odd"),
        Fault("models[0].id", "missing"),
        Fault('env."a.b".name', "bad"),
    ],
    warnings=[Fault("nmae", "unknown")],
)
TREE = """\
a.toml
✗ 7 errors
  ├─ not right
  ├─ server
  │  ├─ port: too big
  │  └─ tls.cert
  │     ├─ gone
  │     └─ old
  ├─ models[0]
  │  ├─ odd
  │  └─ id: missing
  └─ env."a.b".name: bad
▲ 1 warning
  └─ nmae: unknown"""


def test_the_tree() -> None:
    assert draw("a.toml", REPORT) == TREE


def test_colour_is_added_and_nothing_else() -> None:
    import click

    coloured = draw("a.toml", REPORT, colour=True)
    assert "\033[31m✗ 7 errors\033[0m" in coloured
    assert "\033[33m▲ 1 warning\033[0m" in coloured
    assert click.unstyle(coloured) == TREE


def test_nothing_found_is_nothing_said() -> None:
    assert draw("a.toml", Report()) == ""
    assert draw("a.toml", Report(warnings=[Fault("a", "b")])) == "a.toml\n▲ 1 warning\n  └─ a: b"


def test_strict_makes_errors_of_warnings() -> None:
    report = Report(errors=[Fault("a", "1")], warnings=[Fault("b", "2")])
    report.make_strict()
    assert [fault.path for fault in report.errors] == ["a", "b"]
    assert report.warnings == []


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        (["a", "b"], "a.b"),
        (["a.b", "c"], '"a.b".c'),
        (['q"', ""], '"q\\"".""'),
        (["\033[31m"], '"\\u001b[31m"'),
        (["$schema"], "$schema"),
    ],
)
def test_a_path_can_be_taken_apart_again(keys: list[str], path: str) -> None:
    joined = ""
    for key in keys:
        joined = join(joined, key)
    assert joined == path
    assert len(split(path)) == len(keys)
