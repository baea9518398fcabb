"""`bulkhead keys`, `projects` and `tenants`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st

from gateway.cli import whoami
from gateway.cli.answers import Key, Named, Whoami
from gateway.cli.calling import Server
from gateway.cli.commands import main
from gateway.cli.moments import MAX_SPAN_S, moment_us, span_us
from tests.stack import fake_config


@pytest.fixture
def _acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    for name in ("BULKHEAD_URL", "BULKHEAD_API_KEY", "BULKHEAD_STATE", "BULKHEAD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert run("tenants create acme").exit_code == 0


def run(words: str) -> Result:
    return CliRunner().invoke(main, words.split())


def told(words: str) -> Any:
    done = run(f"{words} --json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.usefixtures("_acme")
def test_a_key_is_made_listed_rotated_and_revoked() -> None:
    told("projects create acme search")
    made = told(
        "keys create acme --name web --scope inference --scope usage:read --model echo "
        "--network 203.0.113.0/24 --expires 2126-01-01 --project search"
    )
    (listed,) = told("keys list acme")
    assert listed["scopes"] == ["inference", "usage:read"]
    assert (listed["models"], listed["networks"]) == (["echo"], ["203.0.113.0/24"])
    assert (listed["project"], listed["expires_at"]) == ("search", "2126-01-01T00:00:00Z")
    assert listed["last_used_at"] is None
    assert made["secret"] not in json.dumps(listed)
    rotated = told(f"keys rotate {made['id']} --grace 7d")
    assert rotated["id"] == made["id"]
    assert rotated["secret"] != made["secret"]
    assert rotated["grace_until"] is not None
    shown = run("keys list acme").stdout
    for part in ("PROJECT", "search", "inference usage:read", "2126-01-01", "secret from before"):
        assert part in shown
    assert told(f"keys rotate {made['id']} --grace 0")["grace_until"] is None
    spoken = run(f"keys rotate {made['id']}")
    assert "works until" in spoken.stderr
    assert spoken.stdout.startswith("bh_live_")
    assert run(f"keys revoke {made['id']}").exit_code == 0
    assert "revoked 2" in run("keys list acme").stdout


@pytest.mark.usefixtures("_acme")
def test_a_model_that_there_isn_t_is_told_and_no_fault() -> None:
    done = run("keys create acme --model ecko --model echo")
    assert done.exit_code == 0
    assert "has no model 'ecko' now; did you mean \"echo\"?" in done.stderr
    assert "'echo'" not in done.stderr


@pytest.mark.usefixtures("_acme")
def test_tenants_and_projects_are_changed() -> None:
    told("tenants create tokyo --timezone Asia/Tokyo --weight 2")
    tokyo = told("tenants list")[1]
    assert (tokyo["name"], tokyo["timezone"], tokyo["weight"]) == ("tokyo", "Asia/Tokyo", 2)
    assert run("tenants create mars --timezone Mars/Base").exit_code == 1
    assert len(told("tenants list")) == 2
    assert told("tenants set acme --timezone Europe/Paris --weight 3")["weight"] == 3
    assert "Europe/Paris" in run("tenants list").stdout
    assert run("tenants disable acme").exit_code == 0
    assert told("tenants list")[0]["disabled_at"] is not None
    assert "disabled 2" in run("tenants list").stdout
    assert run("tenants enable acme").exit_code == 0
    assert told("tenants list")[0]["disabled_at"] is None
    told("projects create acme search")
    assert run("projects archive acme search").exit_code == 0
    assert told("projects list acme")[0]["archived_at"] is not None
    assert "archived 2" in run("projects list acme").stdout


@pytest.mark.usefixtures("_acme")
@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ("keys create acme --scope all", 2, "'all' is not one of"),
        ("keys create acme --network 10.0.0.1/8", 1, "write 10.0.0.0/8"),
        ("keys create acme --expires soon", 2, "write 90d, 2026-12-31"),
        ("keys create acme --expires 2020-01-01", 1, "must be in the future"),
        ("keys create acme --expires 2126-01-01T12:00:00", 2, "is no moment"),
        ("keys create acme --project web", 1, "acme has no project 'web'"),
        ("keys create nobody", 1, "no tenant 'nobody'"),
        ("keys rotate key_x", 1, "no key 'key_x'"),
        ("keys rotate key_x --grace 1w", 2, "write 90s, 30m, 24h or 7d"),
        ("tenants set acme", 2, "say what to change"),
        ("tenants set acme --timezone CEST+1", 1, "use an IANA name"),
        ("tenants set acme --weight 0", 1, "from 1 to 1000"),
        ("tenants disable nobody", 1, "no tenant 'nobody'"),
        ("projects archive acme web", 1, "no project 'web'"),
        ("projects create acme a/b", 1, "not a project name"),
    ],
)
def test_what_is_wrong_is_told(words: str, code: int, reason: str) -> None:
    done = run(words)
    assert done.exit_code == code
    assert reason in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("0s", 0), ("90s", 90), ("30m", 1800), ("24h", 86400), ("7d", 604_800),
     ("", None), ("1", None), ("-1h", None), ("1.5h", None), ("1 h", None), ("1w", None),
     ("٣h", None), (f"{MAX_SPAN_S}s", MAX_SPAN_S), (f"{MAX_SPAN_S + 1}s", None)],
)  # fmt: skip
def test_a_span_of_time_is_read(text: str, seconds: int | None) -> None:
    assert span_us(text) == (None if seconds is None else seconds * 1_000_000)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2026-12-31", 1_798_675_200), ("2026-12-31T01:00:00+01:00", 1_798_675_200),
     ("2026-12-31T00:00:00Z", 1_798_675_200), ("2026-12-31T00:00:00", None), ("20261231", None),
     ("2026-02-30", None), ("tomorrow", None), ("", None)],
)  # fmt: skip
def test_a_moment_is_read(text: str, seconds: int | None) -> None:
    assert moment_us(text) == (None if seconds is None else seconds * 1_000_000)


@given(st.text(max_size=30))
def test_no_text_breaks_either(text: str) -> None:
    for found in (span_us(text), moment_us(text)):
        assert found is None or isinstance(found, int)


def test_whoami_tells_of_keys_and_of_subjects() -> None:
    server = Server("http://gate", "secret")
    tenant = Named("tn_1", "acme")
    key = Key("key_1", "web", "bh_live_abcd…wxyz", 0)
    told = dict(
        whoami.tenant_rows(
            server,
            Whoami(
                tenant=tenant,
                key=key,
                project=Named("pr_1", "search"),
                scopes=["inference"],
                models=["a", "b"],
                expires=0,
            ),
        )
    )
    assert told["Key"] == "web bh_live_abcd…wxyz (key_1)"
    assert (told["Project"], told["Models"]) == ("search (pr_1)", "a b")
    assert told["Expires"] == "1970-01-01T00:00:00Z"
    told = dict(whoami.tenant_rows(server, Whoami(tenant, None, subject="https://id|u1")))
    assert told["Subject"] == "https://id|u1"
    assert "Key" not in told
