"""`bulkhead eval`: what other weights and pages cost in quality, and save, on one's own texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
from msgspec import ValidationError, convert
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from engines import registry
from engines.build.sources import SOURCES
from gateway.cli.accounts import as_json
from gateway.cli.completing import host_model_ids
from gateway.cli.evaluated import Price, document, tables
from gateway.cli.options import Declined, Places, locate, peek, places, regular_file
from gateway.evaluation.artefacts import relatives
from gateway.evaluation.child import Follow, Job, evaluate
from runtime import weights
from runtime.config.kinds import Currency
from runtime.node.machine import memory_for_hosts
from runtime.settings import environment

HIGHEST = 10**9  # an hour
ENGINE, CURRENCY = "embedded", "USD"  # of a folder that no configuration says more of
STAGES = {
    "loading": "loading weights",
    "reading": "reading the texts",
    "timing": "timing, in turns",
}


class Money(click.ParamType[Decimal]):
    """A price."""

    name = "amount"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal:
        """See click."""
        try:
            found = Decimal(str(value))
        except ArithmeticError:
            found = Decimal("NaN")
        if not (found.is_finite() and 0 <= found <= HIGHEST):
            self.fail(f"{value!r} is no price from 0 to {HIGHEST:,}", param, ctx)
        return found


class Code(click.ParamType[str]):
    """A currency."""

    name = "code"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """See click."""
        try:
            return convert(value, Currency)
        except ValidationError:
            self.fail(f"{value!r} is no ISO 4217 code, such as EUR", param, ctx)


@click.command("eval")
@click.argument("model", metavar="MODEL|FOLDER", shell_complete=host_model_ids)
@click.option(
    "--prompts",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=regular_file,
    help='Lines of JSON: {"prompt": TEXT} or {"messages": [...]}, perhaps with an "answer".',
)
@click.option(
    "--against",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of other weights, instead of those found. May be given several times.",
)
@click.option("--rounds", type=click.IntRange(0, 1000), default=3, help="Of timing; 0: none.")
@click.option("--cost-per-hour", type=Money(), help="What this machine costs an hour.")
@click.option(
    "--currency", type=Code(), metavar="CODE", help="Of that price. Default: the model's, or USD."
)
@places
@as_json
def eval(  # noqa: PLR0913 - one argument an option
    model: str,
    prompts: Path,
    against: tuple[Path, ...],
    rounds: int,
    cost_per_hour: Decimal | None,
    currency: str | None,
    as_json: bool,
    places: Places,
) -> None:
    """Compare weights and KV pages of MODEL on your own texts.

    BF16 weights, and those that `bulkhead build` made of them (found beside them, in the state
    folder, or named), each over BF16 and FP8 pages: how far each one's next-token probabilities
    are from those of BF16, perplexity, tokens a second. What the texts say is shown and logged
    nowhere.
    """
    subject = subject_of(model, places)
    currency = currency or subject.currency
    job = Job(
        engine=subject.engine,
        folders=[str(folder) for folder in _folders(subject.folder, against, places)],
        options=dict(subject.options),
        prompts=str(prompts),
        rounds=rounds,
        memory_bytes=memory_for_hosts(),
    )
    with progress() as follow:
        result = evaluate(job, dict(environment(), OMP_WAIT_POLICY="PASSIVE"), follow)
    price = None if cost_per_hour is None else Price(cost_per_hour, currency)
    if as_json:
        click.echo(json.dumps(document(model, result, price)))
    else:
        click.echo(tables(result, price))


@dataclass(frozen=True, slots=True)
class Subject:
    """What is compared: a model of the configuration, or of a folder."""

    engine: str
    folder: Path
    options: Mapping[str, Any]
    currency: str


def subject_of(model: str, places: Places) -> Subject:
    """Whom this id, pinned source or folder means; weights are fetched if need be.

    Raises Declined.
    """
    if (Path(model) / "config.json").is_file():
        return Subject(ENGINE, Path(model), {}, CURRENCY)
    settings = peek(places)
    for one in settings.file.models:
        if model not in (one.id, *one.aliases):
            continue
        if one.engine not in registry.EVALUATORS:
            raise Declined(f"{one.id} has an engine {one.engine!r}: there is nothing to compare")
        weights.ensure_of(settings, one)
        return Subject(one.engine, weights.folder(settings, one), one.options, one.price.currency)
    if model in SOURCES:
        place = settings.state_dir / "models" / model
        return Subject(ENGINE, weights.fetched(model, place, model), {}, CURRENCY)
    known = ", ".join(one.id for one in settings.file.models) or "none"
    raise Declined(
        f"{model!r} is no model of the configuration ({known}), no pinned source "
        f"({', '.join(SOURCES)}), and no folder with a config.json"
    )


def _folders(folder: Path, against: Sequence[Path], places: Places) -> list[Path]:
    """The model's own first; each once."""
    near = [folder.absolute().parent, locate(places).state_dir / "models"]
    every: dict[Path, Path] = {}
    for one in (folder, *(against or relatives(folder, near))):
        every.setdefault(one.resolve(), one)
    return list(every.values())


@contextmanager
def progress() -> Iterator[Follow]:
    """A bar for each stage on a terminal; elsewhere a line, when it begins. On standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        begun: set[str] = set()

        def tell(stage: str, _done: int, _total: int) -> None:
            if stage not in begun:
                begun.add(stage)
                click.echo(f"eval: {STAGES[stage]}", err=True)

        yield tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def draw(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(STAGES[stage])
            bars.update(tasks[stage], completed=done, total=total)

        yield draw
