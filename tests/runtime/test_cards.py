"""A model's card: shipped or the operator's own, and every fault of it told with its path."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path

import pytest

from engines.build.sources import SOURCES, Source
from runtime.config.cards import Card, card_of, shipped_cards
from runtime.config.lifecycle import Lifecycle
from runtime.config.report import Report

SMOLLM = "smollm2-135m-instruct"


def read(card: str, source: str = "", folder: Path | None = None) -> tuple[Card, Report]:
    report = Report()
    return card_of(card, source, folder, report, "models[0].card"), report


@pytest.mark.parametrize("name", shipped_cards())
def test_every_shipped_card_is_without_fault(name: str) -> None:
    card, report = read(name)
    assert (report.errors, report.warnings) == ([], [])
    assert card.name
    assert card.license.spdx


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_packaged_source_has_a_card_that_agrees_with_it(source: Source) -> None:
    card, report = read("", source.id)
    assert not report.errors
    assert (card.license.spdx, card.source.package, card.source.file) == (
        source.license,
        source.requirement,
        source.member,
    )


def test_the_shipped_card_agrees_with_the_weights(model_dir: Path) -> None:
    card, _ = read(SMOLLM)
    config = json.loads((model_dir / "config.json").read_text())
    assert card.context_length == config["max_position_embeddings"]
    assert card.architecture.family == config["model_type"]
    with (model_dir / "model.safetensors").open("rb") as file:
        tensors = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    del tensors["__metadata__"]
    sizes = [math.prod(tensor["shape"]) for tensor in tensors.values()]
    assert card.architecture.parameters == sum(sizes)


def test_without_a_card_nothing_is_known() -> None:
    assert read("", "") == (Card(), Report())
    assert read("", "of-another-name") == (Card(), Report())


def test_a_card_of_the_operator_lies_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "Mine"\ncontext_length = 4096\n'
        "[lifecycle]\ndeprecated_at = 2027-01-01\nshutdown_at = 2027-06-01\n"
    )
    card, report = read("mine.toml", SMOLLM, tmp_path)
    assert not report.errors
    assert (card.name, card.context_length) == ("Mine", 4096)
    assert card.lifecycle.shutdown_at == datetime.date(2027, 6, 1)


def test_every_fault_of_a_card_is_told_at_the_key_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'nam = "Mine"\ncontext_length = "8k"\ntask = "sing"\n'
        '[architecture]\ninput_modalities = ["smell"]\n'
        "[lifecycle]\nshutdown_at = 2027-01-01\n"
    )
    card, report = read("mine.toml", "", tmp_path)
    assert card == Card()
    told = [str(fault) for fault in report.errors]
    assert len(told) == 4
    assert all(line.startswith("models[0].card: mine.toml: ") for line in told)
    for key in (
        "context_length",
        "task",
        "architecture.input_modalities[0]",
        "lifecycle.deprecated_at",
    ):
        assert any(f"mine.toml: {key}: " in line for line in told), key
    assert "did you mean `name`" in str(report.warnings[0])


@pytest.mark.parametrize(
    ("card", "text", "reason"),
    [
        ("nope", "", f"known: {', '.join(shipped_cards())}"),
        ("nope.toml", "", "No such file"),
        ("mine.toml", "name = ", "not valid TOML"),
        ("mine.toml", "name = '\udcff'", "not text in UTF-8"),
    ],
)
def test_a_card_that_can_t_be_read_says_why(
    tmp_path: Path, card: str, text: str, reason: str
) -> None:
    (tmp_path / "mine.toml").write_bytes(text.encode(errors="surrogateescape"))
    found, report = read(card, "", tmp_path)
    assert found == Card()
    (fault,) = report.errors
    assert reason in fault.message


def test_without_a_config_file_no_card_lies_beside_it() -> None:
    _, report = read("mine.toml")
    assert "there is none" in report.errors[0].message


DAY_S = 86400
NEW_YEAR = datetime.date(2027, 1, 1)
NEW_YEAR_S = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC).timestamp()


def test_a_lifecycle_s_dates_come_at_midnight_utc() -> None:
    life = Lifecycle(
        status="beta", deprecated_at=NEW_YEAR, shutdown_at=NEW_YEAR + datetime.timedelta(days=1)
    )
    assert life.status_at(NEW_YEAR_S - 1) == "beta"
    assert life.status_at(NEW_YEAR_S) == "deprecated"
    assert not life.is_shut_at(NEW_YEAR_S + DAY_S - 1)
    assert life.is_shut_at(NEW_YEAR_S + DAY_S)
    assert Lifecycle().status_at(NEW_YEAR_S) == "stable"
    assert not Lifecycle().is_shut_at(NEW_YEAR_S)
