"""Values that are odd rather than of a wrong type, faults across keys, and what costs too much."""

from __future__ import annotations

import tomllib

import pytest

from runtime.config import overrides, toml_text
from runtime.config.report import Report
from runtime.config.toml_text import BadText
from runtime.settings import ConfigError, parse

MODEL = '[[models]]\nid = "m"\nengine = "fake"\n'
HUGE = "0x" + "f" * 5000  # Python won't write it in decimals


def faults(text: str) -> dict[str, str]:
    try:
        parse(text, "x")
    except ConfigError as fault:
        return {one.path: one.message for one in fault.report.errors}
    return {}


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ('"a b"', "1", 'vars."a b"'), ("1A", "1", "vars.1A"), ("A", "nan", "vars.A"),
        ("A", "-inf", "vars.A"), ("A", HUGE, "vars.A"), ("A", '"\\u0000"', "vars.A"),
        ("A", "[{ b = inf }]", "vars.A[0].b"),
    ],
)  # fmt: skip
def test_a_variable_that_nothing_can_use_is_told_once_where_it_is_set(
    name: str, value: str, path: str
) -> None:
    used = 'owned_by = "x ${A}"\n' if name == "A" else ""
    assert faults(f"[vars]\n{name} = {value}\n{MODEL}{used}").keys() == {path}


@pytest.mark.parametrize("where", ["default_max_tokens", "options.x", "extra_body.a.b"])
def test_a_number_beyond_toml_s_is_told_with_its_path(where: str) -> None:
    assert f"models[0].{where}" in faults(f"{MODEL}{where} = {HUGE}\n")
    assert faults(f"{MODEL}[secrets]\nrequired = [{HUGE}]\n").keys() == {"secrets.required[0]"}


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("options.step_s = {}", "options.step_s"), ("options.a.b = [1, {}]", "options.a.b[1]"),
        ("extra_body.top_k = {}", "extra_body.top_k"),
        ('extra_body."a b" = {}', 'extra_body."a b"'),
    ],
)  # fmt: skip
def test_what_json_has_no_word_for_is_told_with_its_path(
    value: str, path: str, number: str
) -> None:
    """It would reach an engine as null, or not at all."""
    model = MODEL.replace("fake", "openai") if "extra" in value else MODEL
    found = faults(model + value.format(number))
    assert found[f"models[0].{path}"] == f"expected a number, found {number}"


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        ("https://x:443", 'write "https://x"'), ("http://x:80", 'write "http://x"'),
        ("https://[::1]:443", 'write "https://[::1]"'), ("https://x:65536", "at most 65535"),
        ("https://x:0", "as browsers send it"), ("https://x:08080", "as browsers send it"),
        ("http://x:443", ""), ("https://x:65535", ""), ("https://[::1]", ""), ("*", ""),
    ],
)  # fmt: skip
def test_an_origin_that_no_browser_sends(origin: str, message: str) -> None:
    found = faults(f'{MODEL}[[tenants]]\nname = "a"\norigins = ["{origin}"]\n')
    assert message in found.get("tenants[0].origins[0]", "")
    assert bool(found) == bool(message)


@pytest.mark.parametrize("host", ["a b", "[::1]", "http://x", "-a", "a" * 64, "a:80", "", "\u00e4"])
@pytest.mark.parametrize("section", ["server", "admin", "node"])
def test_a_host_that_can_t_be(section: str, host: str) -> None:
    assert f"{section}.host" in faults(f'{MODEL}[{section}]\nhost = "{host}"\n')


@pytest.mark.parametrize("host", ["127.0.0.1", "::", "fe80::1%eth0", "localhost", "a.example."])
def test_a_host_that_can_be(host: str) -> None:
    assert faults(f'{MODEL}[server]\nhost = "{host}"\n') == {}


@pytest.mark.parametrize(
    "text", ["8" * 5000, "+80", " 80", "80.0", "1e3", "8_0", "٣", "65536", "x"]
)
@pytest.mark.parametrize("name", ["BULKHEAD_PORT", "BULKHEAD_ADMIN_PORT"])
def test_a_port_of_the_environment_that_is_none(name: str, text: str) -> None:
    report = Report()
    overrides.check({name: text, "BULKHEAD_HOST": "a b"}, report)
    assert [fault.path for fault in report.errors] == ["BULKHEAD_HOST", name]
    assert len(str(report.errors[1])) < 200


def test_zero_is_no_admin_port_and_no_port() -> None:
    report = Report()
    overrides.check({"BULKHEAD_PORT": "0", "BULKHEAD_ADMIN_PORT": "0"}, report)
    assert [fault.path for fault in report.errors] == ["BULKHEAD_PORT"]


def test_faults_across_keys_are_told_beside_others() -> None:
    """As far as what they are about is good."""
    found = faults(
        '[server.tls]\ncert = "c"\nmin_version = "9"\n'
        "[hosts]\nmemory_bytes = 10\nstart_s = -1\n"
        '[[models]]\nid = "m"\nengine = "magic"\n'
        '[[models]]\nid = "m"\nengine = "fake"\naliases = [3, "m"]\nmemory_bytes = 100\n'
        'owned_by = 3\nmin_hosts = 2\nlifecycle = { successor = "m", status = "x" }\n'
        '[[tenants]]\nname = "a"\norigins = [1]\n[[tenants]]\nname = "a"\nprices = 1\n'
    )
    told = {path for path, message in found.items() if not message.startswith("expected")}
    assert told == {
        "server.tls.key",
        "models[1].id",
        "models[1].aliases[1]",
        "models[1].min_hosts",
        "models[1].lifecycle.successor",
        "models[1].memory_bytes",
        "tenants[1].name",
    }


def test_a_fault_is_not_taken_for_something_that_lacks() -> None:
    """What a faulty value would have been isn't guessed."""
    found = faults(
        "[server.tls]\ncert = 1\nkey = 2\n[node]\nport = 1\ntls = 3\n[[nodes]]\nurl = 4\ntls = 5\n"
        '[[models]]\nid = 6\nengine = "fake"\nmin_hosts = 3\nmax_hosts = "x"\n'
        '[[triggers.crons]]\ncron = "0 0 * * *"\nrun = "warm"\nmodel = "may-be-that-one"\n'
    )
    assert all(message.startswith("expected") for message in found.values()), found


PARTS = 20_000


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * PARTS) + " = 1\n",
        "x = 1\n[" + ".".join("a" * PARTS) + "]\n",
        "  [[ " + " . ".join(["'a.b'"] * PARTS) + " ]]\n",
        ".".join([r'"\""'] * PARTS) + " = 1\n",
    ],
)
def test_a_key_of_very_many_parts_is_refused_before_it_is_read(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading costs the square of their number."""
    monkeypatch.delattr(tomllib, "loads")
    with pytest.raises(BadText, match=r"line \d: more than 64 levels deep"):
        toml_text.tables(text)


def test_many_parts_elsewhere_are_no_deep_key() -> None:
    dotted = ".".join("a" * 200)
    text = f'a = "{dotted}"\n"{dotted}" = 1\n# {dotted}.\n'
    assert toml_text.tables(text) == {"a": dotted, dotted: 1}
