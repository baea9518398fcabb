"""A model's card: what its makers say of it, for the catalog. One TOML file a model.

Cards ship in `config/models`; an operator's own lie beside the config. What is not known is left
out of a card, and the catalog then says so: nothing is guessed.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

from msgspec import Struct

from engines import regular
from runtime.config.check import convert
from runtime.config.kinds import Number
from runtime.config.lifecycle import Lifecycle
from runtime.config.report import Report
from runtime.config.toml_text import BadText, tables

SUFFIX = ".toml"

Task = Literal["text-generation", "text-embeddings"]  # Workers AI's names
Modality = Literal["text", "image", "audio", "video", "file", "embeddings"]


class License(Struct, frozen=True, kw_only=True):
    """Under which terms the weights may be used."""

    spdx: str = ""
    url: str = ""


class CardSource(Struct, frozen=True, kw_only=True):
    """Where the weights come from."""

    repo: str = ""  # as its makers call it: owner/name
    revision: str = ""
    package: str = ""  # the package that holds the file, and its version
    file: str = ""


class Architecture(Struct, frozen=True, kw_only=True):
    """What the model is made of, takes and gives."""

    family: str = ""
    parameters: Number = 0
    input_modalities: tuple[Modality, ...] = ("text",)
    output_modalities: tuple[Modality, ...] = ("text",)
    tokenizer: str = ""  # the kind: GPT2, Llama3
    instruct_type: str = ""  # the chat template's kind: chatml, llama3


class Card(Struct, frozen=True, kw_only=True):
    """The record of one model. 0 and "" mean: not known."""

    name: str = ""
    description: str = ""
    task: Task = "text-generation"
    context_length: Number = 0  # tokens, prompt and answer together
    max_output_tokens: Number = 0
    architecture: Architecture = Architecture()
    license: License = License()
    source: CardSource = CardSource()
    tokenizer: str = ""  # its name
    quantization: str = ""  # of the weights, as they were published
    dtype: str = ""  # they are computed with
    lifecycle: Lifecycle = Lifecycle()


def shipped_cards() -> list[str]:
    """The names of the cards that come with the product."""
    folder = resources.files("config") / "models"
    return sorted(
        file.name.removesuffix(SUFFIX) for file in folder.iterdir() if file.name.endswith(SUFFIX)
    )


def card_of(card: str, source: str, folder: Path | None, report: Report, path: str = "") -> Card:
    """The card that a model's `card` names, or that ships for its `source`; else an empty one.

    `folder` is the config's. What is wrong is added to `report`, at `path`.
    """
    if not card and source not in shipped_cards():
        return Card()
    text = _text(card or source, folder, report, path)
    return (_parsed(text, card or source, report, path) if text is not None else None) or Card()


def _text(card: str, folder: Path | None, report: Report, path: str) -> str | None:
    if card.endswith(SUFFIX):
        return _file(card, folder, report, path)
    known = shipped_cards()
    if card not in known:
        report.error(
            path,
            f"no card {card!r} is shipped (known: {', '.join(known)}); "
            f"a file beside the config ends in {SUFFIX}",
        )
        return None
    return (resources.files("config") / "models" / (card + SUFFIX)).read_text("utf-8")


def _file(card: str, folder: Path | None, report: Report, path: str) -> str | None:
    if folder is None:
        report.error(path, f"{card!r} would lie beside the config file, and there is none")
        return None
    try:
        return regular.read(folder / card).decode()
    except UnicodeDecodeError:
        report.error(path, f"{card}: not text in UTF-8")
    except OSError as fault:
        report.error(path, f"{folder / card}: {fault.strerror}")
    return None


def _parsed(text: str, card: str, report: Report, path: str) -> Card | None:
    """Faults inside the card are told at the key that names it, with their own path after it."""
    found = Report()
    try:
        parsed = convert(Card, tables(text), found)
    except BadText as fault:
        report.error(path, f"{card}: {fault}")
        return None
    for error in found.errors:
        report.error(path, f"{card}: {error}")
    for warning in found.warnings:
        report.warn(path, f"{card}: {warning}")
    return parsed
