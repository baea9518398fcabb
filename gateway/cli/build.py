"""`bulkhead build`: a model's weights as one artefact for our engine and TensorRT-LLM."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engines.build.preflight import faults
from gateway.cli.accounts import as_json
from gateway.cli.completing import model_ids
from gateway.cli.options import Exit, Places, peek, places, regular_file
from runtime.building import Step, Wish, build as build_artefact, called
from runtime.config.models import PriceSettings

LINE_EVERY = 5  # layers, where no bar can be drawn
LONGEST_ID = 128
FREE = PriceSettings()


@click.command()
@click.argument("model", shell_complete=model_ids, required=False)
@click.option(
    "--weights",
    type=click.Choice(["int4-awq", "bf16"]),
    default="int4-awq",
    show_default=True,
    help="What the layers' matrices become.",
)
@click.option(
    "--kv",
    type=click.Choice(["fp8", "bf16"]),
    default="fp8",
    show_default=True,
    help="What the KV cache will hold: fp8 has its scales measured.",
)
@click.option(
    "--group",
    type=click.Choice(["64", "128"]),
    default="64",
    show_default=True,
    help="Inputs that share a scale.",
)
@click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=regular_file,
    help="Text like what will be asked: .jsonl with `text` or `messages` a line, or plain.",
)
@click.option(
    "--quantizer",
    type=click.Choice(["bulkhead", "modelopt"]),
    default="bulkhead",
    show_default=True,
    help="Ours, or NVIDIA's where it is installed.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="The artefact's folder. Default: models/ of the state folder, by a name that tells it.",
)
@click.option(
    "--check",
    "checked",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Build nothing: look over the artefact in this folder.",
)
@places
@as_json
def build(  # noqa: PLR0913 - one argument an option
    model: str | None,
    weights: str,
    kv: str,
    group: str,
    calibration: Path | None,
    quantizer: str,
    out: Path | None,
    checked: Path | None,
    places: Places,
    as_json: bool,
) -> None:
    """Build an artefact of MODEL that our engine and TensorRT-LLM both read.

    MODEL is the id of a model in the configuration, a pinned source, or a folder in Hugging Face
    layout (Llama, Qwen2, Qwen3). A build that was interrupted goes on where it was.
    """
    if checked is not None:
        if model is not None:
            raise click.UsageError("either a MODEL to build, or --check a folder")
        look_over(checked, as_json)
        return
    if model is None:
        raise click.UsageError("say which MODEL to build, or --check a folder")
    wish = Wish(model, weights, kv, int(group), quantizer, calibration, out)
    settings = peek(places)
    with progress() as tell:
        folder = build_artefact(settings, wish, tell)
    told = json.loads((folder / "build.json").read_bytes())
    if as_json:
        click.echo(json.dumps({"folder": str(folder)} | told))
    else:
        click.echo(summary(folder, told))
        prices = [m.price for m in settings.file.models if m.id == model]
        click.echo("\nTo serve it, in bulkhead.toml, instead of the table of that id:\n")
        click.echo(config_lines(wish, folder, *prices))


def look_over(folder: Path, as_json: bool) -> None:
    """Ends with 1 if anything is wrong."""
    found = faults(folder)
    if as_json:
        wrong = [{"where": fault.where, "reason": fault.reason} for fault in found]
        click.echo(json.dumps({"folder": str(folder), "ok": not found, "faults": wrong}))
    else:
        for fault in found:
            click.echo(f"✗ {fault}")
        if not found:
            click.echo(f"{folder} is good: our engine and TensorRT-LLM read the same from it.")
    if found:
        raise click.exceptions.Exit(Exit.FAILED)


@contextmanager
def progress() -> Iterator[Callable[[Step], None]]:
    """A bar on a terminal, a line now and then elsewhere; both on stderr."""
    if not sys.stderr.isatty():
        yield _tell_line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda step: bar.update(
            task,
            description=step.step,
            completed=step.done,
            total=step.of if step.of > 1 else None,
        )


def _tell_line(step: Step) -> None:
    if step.done % LINE_EVERY == 0:
        count = f" {step.done} of {step.of}" if step.of > 1 else ""
        click.echo(f"build: {step.step}{count}", err=True)


def summary(folder: Path, told: dict[str, Any]) -> str:
    """What was built, in a few lines."""
    sizes, quality, fits = told["sizes"], told["quality"], told["kv"]["unit_scale"]
    lines = [
        f"{folder}: {sizes['file'] / 1e6:,.1f} MB; the layers' matrices take "
        f"{sizes['ratio']:.2f} of their BF16 size."
    ]
    if "perplexity" in quality:
        lines.append(
            f"On {quality['tokens']:,} tokens that were held out: perplexity "
            f"{quality['perplexity']:.2f}, {quality['source_perplexity']:.2f} before; KL "
            f"{quality['kl']:.3f} nats; the likeliest token is the same for "
            f"{quality['same_likeliest']:.0%}."
        )
    elif told["options"]["weights"] != "bf16":
        lines.append("What rounding has cost was not measured: `bulkhead eval` tells.")
    lines.append(
        f"K and V reach {fits['amax']:.1f}: FP8 pages "
        + ("hold them as they are." if fits["fits"] else "can't hold them at scale 1.")
    )
    return "\n".join(lines)


def _id(name: str) -> str:
    """What a model of that name may be called in the configuration: a folder's may be any."""
    plain = re.sub(r"[^A-Za-z0-9@._/-]+", "-", name).strip("-._/")
    return plain[:LONGEST_ID] or "model"


def config_lines(wish: Wish, folder: Path, price: PriceSettings = FREE) -> str:
    """The model's table, at the price that it has. A JSON string is a TOML string too."""
    lines = [
        "[[models]]",
        f'id = "{_id(called(wish.model))}"',
        'engine = "embedded"',
        f"path = {json.dumps(str(folder), ensure_ascii=False)}",
    ]
    if wish.kv == "fp8":
        lines += ["[models.options]", 'kv_dtype = "fp8_e4m3"']
    if price != FREE:
        amounts = {
            key: getattr(price, key) for key in ("currency", "input", "cached_input", "output")
        }
        lines += [
            "[models.price]",
            *(f"{key} = {json.dumps(text)}" for key, text in amounts.items()),
        ]
    if price.effective_from:
        lines += [f"effective_from = {price.effective_from.isoformat()}"]
    return "\n".join(lines)
