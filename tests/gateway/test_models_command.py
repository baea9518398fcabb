"""`bulkhead models` without a gateway: what the configuration says. With one: e2e/test_catalog."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.commands import main
from gateway.cli.models import per_million

CONFIG = """
[[models]]
id = "seer"
engine = "openai"
cache = "salted"
url = "http://there/v1"
api_key_secret = "THERE_KEY"
aliases = ["seer-latest"]
card = "seer.toml"
price = { currency = "EUR", input = "0.10", cached_input = "0", output = "12" }
lifecycle = { deprecated_at = 2026-01-01, shutdown_at = 2999-01-01 }

[[models]]
id = "echo"
engine = "fake"
"""


@pytest.fixture
def bulkhead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BULKHEAD_URL", "BULKHEAD_API_KEY", "BULKHEAD_CONFIG", "BULKHEAD_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("THERE_KEY", "sk-canary")
    (tmp_path / "bulkhead.toml").write_text(CONFIG)
    (tmp_path / "seer.toml").write_text('name = "Seer"\ncontext_length = 4096\n')
    return tmp_path / "bulkhead.toml"


def run(config: Path, *args: str) -> Result:
    return CliRunner().invoke(main, ["models", *args, "--config", str(config)])


def test_the_list_for_people(bulkhead: Path) -> None:
    lines = [" ".join(line.split()) for line in run(bulkhead, "list").stdout.splitlines()]
    seer = "text-generation 4096 0.1 0 12 EUR deprecated, until 2999-01-01"
    assert lines == [
        "MODEL TASK CONTEXT INPUT/1M CACHED/1M OUTPUT/1M CURRENCY STATUS",
        f"seer {seer}",
        f"seer-latest (= seer) {seer}",
        "echo text-generation 8192 0 0 0 USD stable",
    ]


def test_the_list_for_machines_is_the_catalog_s_record(bulkhead: Path) -> None:
    found = json.loads(run(bulkhead, "list", "--json", "--search", "SEER").stdout)
    assert [model["id"] for model in found] == ["seer", "seer-latest"]
    assert found[0]["pricing"]["completion"] == "0.000012"
    assert "canary" not in json.dumps(found)
    assert json.loads(run(bulkhead, "list", "--json", "--task", "text-embeddings").stdout) == []


def test_another_task_is_a_wrong_command_line(bulkhead: Path) -> None:
    assert run(bulkhead, "list", "--task", "sing").exit_code == 2


def test_the_schema_for_people_and_for_machines(bulkhead: Path) -> None:
    told = run(bulkhead, "schema", "seer-latest").stdout
    assert "POST /v1/chat/completions" in told
    assert "top_p" in told
    assert "number over 0, to 1" in told
    (model,) = [line for line in told.splitlines() if line.startswith("model ")][:1]
    assert model.endswith("required")
    found = json.loads(run(bulkhead, "schema", "seer", "--json").stdout)
    assert set(found["/v1/completions"]) == {"input", "output", "stream"}


def test_an_unknown_model_is_told_with_those_there_are(bulkhead: Path) -> None:
    done = run(bulkhead, "schema", "nope")
    assert done.exit_code == 1
    assert "there are seer, echo" in done.stderr


@pytest.mark.parametrize(
    ("per_token", "told"),
    [("0.0000001", "0.1"), ("0", "0"), ("1", "1000000"), ("0.000000000001", "0.000001")],
)
def test_a_price_is_told_as_the_config_writes_it(per_token: str, told: str) -> None:
    assert per_million(Decimal(per_token)) == told
