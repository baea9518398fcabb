"""`${NAME}` in the file's texts, `--var`, and `.dev.vars`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from runtime.config import dev_vars
from runtime.config.report import Report
from runtime.config.variables import UNKNOWN, Variables, expand, plain
from runtime.config_file import Given, parse
from runtime.settings import ConfigError, load

MODEL = '[[models]]\nid = "m"\nengine = "fake"\n'
VALUES = {
    "HOST": "a.test", "PORT": 8080, "RATE": 0.5, "ON": True, "DAY": datetime.date(2026, 11, 1),
    "TABLE": {"a": 1}, "EMPTY": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("${HOST}", "a.test"),
        ("http://${HOST}:${PORT}/v1", "http://a.test:8080/v1"),
        ("${PORT}", 8080),
        ("${RATE}", 0.5),
        ("${ON}", True),
        ("${DAY}", datetime.date(2026, 11, 1)),
        ("${TABLE}", {"a": 1}),
        ("${ON}/${RATE}/${DAY}", "true/0.5/2026-11-01"),
        ("${EMPTY}", ""),
        ("$${HOST}", "${HOST}"),
        ("$${HOST}${HOST}", "${HOST}a.test"),
        ("$HOST and $", "$HOST and $"),
        ("$$", "$$"),
        ("$${", "${"),
        (["${HOST}", 1, ["${PORT}"]], ["a.test", 1, [8080]]),
        ({"k": {"${HOST}": "${HOST}"}}, {"k": {"${HOST}": "a.test"}}),
        (3, 3),
    ],
)
def test_what_a_text_becomes(text: Any, value: Any) -> None:
    report = Report()
    found = plain(expand(text, Variables(VALUES), report))
    assert (found, type(found)) == (value, type(value))
    assert report.errors == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${HOTS}", "there is no variable `HOTS`: set it in [vars], or with --var HOTS:VALUE; "
         "did you mean `HOST`?"),
        ("${a b}", "`${a b}` names no variable; write `$${` for the two characters themselves"),
        ("${}", "`${}` names no variable"),
        ("${HOST", "`${` has no `}`; write `$${`"),
        ("x${TABLE}", "`TABLE` is a table or a list, which can't stand inside a text"),
        ("${TOKEN}", "`TOKEN` is a secret, and no value of this file may hold one"),
    ],
)  # fmt: skip
def test_what_can_t_be_is_told_with_its_path(text: str, message: str) -> None:
    report = Report()
    variables = Variables(VALUES, secrets=frozenset({"TOKEN"}))
    found = expand({"a": ["", text]}, variables, report)
    assert found["a"][1] is UNKNOWN
    (fault,) = report.errors
    assert fault.path == "a[1]"
    assert fault.message.startswith(message)


def test_every_missing_name_of_a_text_is_told() -> None:
    report = Report()
    expand("${A}${B}", Variables({}), report)
    assert [fault.message.split("`")[1] for fault in report.errors] == ["A", "B"]


@pytest.mark.parametrize(
    ("line", "given", "value"),
    [
        ('max_waiting = "${N}"', {"N": "17"}, 17),
        ('idle_timeout_s = "${N}"', {"N": "1.5"}, 1.5),
        ('released = "${N}"', {"N": "2026-11-01"}, datetime.date(2026, 11, 1)),
        ('owned_by = "${N}"', {"N": "17"}, "17"),
    ],
)
def test_a_text_from_outside_is_read_as_what_is_expected(
    line: str, given: dict[str, str], value: Any
) -> None:
    parsed = parse(MODEL + line + "\n", "", Given(command_line=given))
    assert parsed.file is not None
    found = getattr(parsed.file.models[0], line.split(" ", 1)[0])
    assert (found, type(found)) == (value, type(value))


def test_a_text_from_outside_may_be_true_or_false() -> None:
    text = MODEL + '[observability]\nenabled = "${N}"\n'
    parsed = parse(text, "", Given(command_line={"N": "false"}))
    assert parsed.file is not None
    assert parsed.file.observability.enabled is False


@pytest.mark.parametrize("value", ["many", "1.5", "-1", "", "0x10", "1_000"])
def test_a_text_that_is_no_number_is_a_fault(value: str) -> None:
    parsed = parse(MODEL + 'max_waiting = "${N}"\n', "", Given(command_line={"N": value}))
    (fault,) = parsed.report.errors
    assert fault.path == "models[0].max_waiting"
    assert fault.message.endswith(f'found the text "${{N}}", which is "{value}"')


def test_a_text_of_the_file_stays_a_text() -> None:
    """Only what comes from outside is read as a number: "8787" in the file is a mistake."""
    assert [f.path for f in parse(MODEL + 'max_waiting = "17"\n').report.errors] == [
        "models[0].max_waiting"
    ]


def test_the_command_line_wins_over_dev_vars_and_they_over_the_file() -> None:
    text = '[vars]\nA = "file"\nB = "file"\nC = "file"\n' + MODEL + 'owned_by = "${A} ${B} ${C}"\n'
    given = Given(command_line={"A": "line"}, dev_vars={"A": "dev", "B": "dev"})
    parsed = parse(text, "", given)
    assert parsed.file is not None
    assert parsed.file.models[0].owned_by == "line dev file"


def test_what_comes_from_dev_vars_is_not_shown() -> None:
    text = MODEL + 'max_waiting = "${N}"\n'
    (fault,) = parse(text, "", Given(dev_vars={"N": "canary"})).report.errors
    assert fault.message == 'expected a whole number of 0 or more, found the text "${N}"'


def test_vars_and_secrets_are_taken_as_they_are_written() -> None:
    parsed = parse('[vars]\nA = "${B}"\n' + MODEL + 'owned_by = "${A}"\n')
    assert parsed.file is not None
    assert parsed.file.vars == {"A": "${B}"}
    assert parsed.file.models[0].owned_by == "${B}"


def test_a_secret_s_name_may_come_from_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(
        '[vars]\nKEY = "UP_KEY"\n[[models]]\nid = "m"\nengine = "openai"\ncache = "salted"\nurl = "http://x/v1"\n'
        'api_key_secret = "${KEY}"\n'
    )
    settings, _ = load(path, environ={"UP_KEY": "sk"})
    assert settings.secrets["UP_KEY"] == "sk"
    with pytest.raises(ConfigError, match="UP_KEY is not set"):
        load(path, environ={})


def test_variables_reach_children(tmp_path: Path) -> None:
    from runtime.settings import child_environment

    path = tmp_path / "bulkhead.toml"
    path.write_text(MODEL + 'owned_by = "${WHO}"\n')
    settings, _ = load(path, variables=("WHO:me:and:you",), environ={})
    assert settings.file.models[0].owned_by == "me:and:you"
    again, _ = load(environ=child_environment(settings), cwd=Path("/"))
    assert again == settings


DOTENV = """
# a comment
A=plain
export B = "quoted # not a comment"  # a comment
C='single $A'
D=
E="two
lines"
"""


def test_dotenv_syntax(tmp_path: Path) -> None:
    (tmp_path / ".dev.vars").write_text(DOTENV)
    report = Report()
    assert dev_vars.read(tmp_path, "", report) == {
        "A": "plain", "B": "quoted # not a comment", "C": "single $A", "D": "", "E": "two\nlines",
    }  # fmt: skip
    assert report.errors == []


def test_the_environment_s_dev_vars_are_read_instead(tmp_path: Path) -> None:
    (tmp_path / ".dev.vars").write_text("A=all\nB=all\n")
    (tmp_path / ".dev.vars.staging").write_text("A=staging\n")
    assert dev_vars.read(tmp_path, "", Report()) == {"A": "all", "B": "all"}
    assert dev_vars.read(tmp_path, "staging", Report()) == {"A": "staging"}
    assert dev_vars.read(tmp_path, "qa", Report()) == {"A": "all", "B": "all"}
    assert dev_vars.read(tmp_path / "nowhere", "", Report()) == {}


def test_a_line_that_isn_t_one_is_told_without_its_text(tmp_path: Path) -> None:
    (tmp_path / ".dev.vars").write_text('A=1\n\nsk-canary\nB="open\n')
    report = Report()
    assert dev_vars.read(tmp_path, "", report) == {"A": "1"}
    assert [fault.message for fault in report.errors] == [
        ".dev.vars, line 3: expected NAME=value",
        ".dev.vars, line 4: expected NAME=value",
    ]


def test_dev_vars_count_only_in_dev(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / ".dev.vars").write_text("WHO=me\nKEY=sk\n")
    path = tmp_path / "config" / "bulkhead.toml"
    path.write_text(
        '[secrets]\nrequired = ["KEY"]\n[vars]\nWHO = "you"\n' + MODEL + 'owned_by = "${WHO}"\n'
    )
    settings, _ = load(path, dev=True, environ={})
    assert settings.file.models[0].owned_by == "me"
    assert settings.secrets["KEY"] == "sk"
    settings, _ = load(path, environ={"KEY": "real"})
    assert settings.file.models[0].owned_by == "you"
    with pytest.raises(ConfigError, match="KEY is not set"):
        load(path, dev=False, environ={})


def test_faults_of_dev_vars_are_told_beside_the_file_s(tmp_path: Path) -> None:
    (tmp_path / ".dev.vars").write_bytes(b"A=\xff\n")
    (tmp_path / "bulkhead.toml").write_text("[server]\nport = 0\n" + MODEL)
    with pytest.raises(ConfigError) as told:
        load(tmp_path / "bulkhead.toml", dev=True, environ={})
    assert [fault.path for fault in told.value.report.errors] == ["server.port", ""]
    assert ".dev.vars is not text in UTF-8" in str(told.value)
