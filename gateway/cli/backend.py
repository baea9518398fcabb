"""`bulkhead backend`: what a server does, before it is attached, or since."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

import click
import msgspec

from engines.trtllm.settings import ENGINE
from gateway.cli import flags
from gateway.cli.accounts import as_json
from gateway.cli.columns import table
from gateway.cli.completing import model_ids
from gateway.cli.help import Sentences
from gateway.cli.options import Places, Unreachable, peek, places, telling
from gateway.conformance.backend import Target, Unusable
from gateway.conformance.run import trials
from gateway.conformance.verdict import Line, Verdict
from runtime.config.attached import KINDS
from runtime.config.kinds import is_http_url
from runtime.config.models import ModelSettings
from runtime.settings import in_environment

MARKS = {Verdict.PASS: "✓", Verdict.FAIL: "✗", Verdict.UNKNOWN: "?"}
CACHES = ("salted", "off", "shared-accepted")


@click.group(cls=Sentences)
def backend() -> None:
    """Servers to attach, or attached ones."""


@backend.command("test")
@click.argument("url")
@click.option("--kind", type=click.Choice(list(KINDS)), default="openai", show_default=True)
@click.option("--cache", type=click.Choice(CACHES), help="As in the config. Default: its kind's.")
@click.option("--model", default="", help="Its name there. Default: the first that is listed.")
@click.option("--api-key-env", default="", help="The variable that holds its key.")
@click.option(
    "--second-key-env",
    default="",
    help="Of another tenant's key, where keys and not salts keep caches apart.",
)
@as_json
@telling
def test_backend(  # noqa: PLR0913 - one argument an option
    url: str,
    kind: str,
    cache: str | None,
    model: str,
    api_key_env: str,
    second_key_env: str,
    as_json: bool,
) -> None:
    """Try the server at URL (its /v1): caches, cancelling, counting, errors, characters.

    Sends it some dozens of requests. Exit code 1 if a line fails. Lines with ? can't be seen from
    outside: give the server its metrics (SGLang: --enable-metrics, llama.cpp: --slots).
    """
    if not is_http_url(url):
        raise click.UsageError(f"URL: expected the http(s) URL of its /v1, found {url!r}")
    target = Target(
        url,
        kind,
        cache or "",  # type: ignore[arg-type] # click has checked it
        model,
        _secret(api_key_env),
        _secret(second_key_env),
    )
    try:
        lines = asyncio.run(_tried(target, shown=not as_json))
    except Unusable as fault:
        raise Unreachable(str(fault)) from None
    if as_json:
        click.echo(json.dumps({"url": url, "kind": kind, "lines": msgspec.to_builtins(lines)}))
    else:
        rows = [(MARKS[line.verdict], line.name, line.seen) for line in lines]
        click.echo(table(rows, ("", "WHAT", "SEEN")))
    sys.exit(any(line.verdict is Verdict.FAIL for line in lines))


@backend.command("flags")
@click.argument("model", shell_complete=model_ids)
@click.option(
    "--weights",
    default="",
    help="A folder there. Default: the model's name.",
)
@click.option(
    "--kv",
    type=click.Choice(["fp8", "auto"]),
    default="fp8",
    show_default=True,
    help="What its KV cache holds: FP8 (e4m3), or what the weights say.",
)
@click.option("--tensor-parallel", type=click.IntRange(1), default=1, help="GPUs of one server.")
@click.option(
    "--role",
    type=click.Choice(["prefill", "decode"]),
    help="Of servers that compute prompts, or answers, alone.",
)
@places
def tell_flags(
    model: str, weights: str, kv: str, tensor_parallel: int, role: str | None, places: Places
) -> None:
    """Print the command lines that start MODEL's servers: of vLLM and SGLang.

    With them its servers keep tenants' prefixes as the configuration says, and run as many requests
    at once as are sent to them.
    """
    found = next((one for one in peek(places).file.models if model in (one.id, *one.aliases)), None)
    if found is None or found.engine != "openai" or found.kind not in flags.KINDS:
        raise click.UsageError(_without_flags(model, found, peek(places).file.models))
    wish = flags.Wish(weights, kv, tensor_parallel, role or "")  # type: ignore[arg-type] # checked
    for line in flags.lines(found, wish):
        click.echo(line)


def _without_flags(name: str, found: ModelSettings | None, all: Sequence[ModelSettings]) -> str:
    if found is not None and found.engine == ENGINE:
        return f"TensorRT-LLM serves {name!r}: see `bulkhead trt render {name}`"
    known = ", ".join(one.id for one in all if one.engine == "openai" and one.kind in flags.KINDS)
    return f"{name!r} is no model with servers of vLLM or SGLang; there are: {known or 'none'}"


async def _tried(target: Target, *, shown: bool) -> list[Line]:
    """All lines; on a terminal each name is told as it is known, since they take a while."""
    lines = []
    async for line in trials(target):
        lines.append(line)
        if shown and sys.stderr.isatty():
            click.echo(f"{MARKS[line.verdict]} {line.name}", err=True)
    return lines


def _secret(variable: str) -> str:
    """A key by the variable that holds it: on a command line others could read it."""
    found = in_environment(variable) if variable else ""
    if found is None:
        raise click.UsageError(f"there is no variable {variable} in the environment")
    return found
