"""`bulkhead trt`: models that TensorRT-LLM serves."""

from __future__ import annotations

import json
from pathlib import Path

import click
from msgspec.structs import replace

from engines.trtllm.closure import NoModule
from engines.trtllm.commands import Laid, Served
from engines.trtllm.kubernetes import kubernetes_yaml
from engines.trtllm.render import Unrenderable
from engines.trtllm.rendered import Rendered, rendered, write
from engines.trtllm.rewritten import Gone, rewrite
from engines.trtllm.roles import roles
from engines.trtllm.slurm import slurm_script
from gateway.cli.accounts import as_json
from gateway.cli.completing import trt_model_ids
from gateway.cli.help import Sentences
from gateway.cli.launched import status
from gateway.cli.launching import launch, model_of
from gateway.cli.options import Declined, Places, peek, places
from runtime.config.models import ModelSettings
from runtime.settings import Settings

GPUS = 8  # of a machine
NOTHING = Gone((), ())
ELSEWHERE = Path("/etc/bulkhead/trt")  # where files may lie that are printed


@click.group(cls=Sentences)
def trt() -> None:
    """Models that TensorRT-LLM serves."""


trt.add_command(launch)
trt.add_command(status)


@trt.command()
@click.argument("model", shell_complete=trt_model_ids)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder for all of it: YAML, command lines, the guard's modules. Else one is printed.",
)
@click.option(
    "--role",
    type=click.Choice(["context", "generation", "front"]),
    help="Which YAML to print, where prompts are computed apart from answers.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["kubernetes", "slurm"]),
    help="As objects of Kubernetes, or as a job of Slurm's (with --out, which all nodes must see).",
)
@click.option(
    "--image", default="", help="Of a container that has TensorRT-LLM. Else the config's."
)
@click.option(
    "--python",
    default="",
    help="TensorRT-LLM's own Python in that image, for launchers in Kubernetes' pods.",
)
@click.option(
    "--gpus-per-machine",
    type=click.IntRange(1),
    default=GPUS,
    show_default=True,
    help="A server that needs more of them spans machines.",
)
@places
@as_json
def render(  # noqa: PLR0913 - one argument an option
    model: str,
    out: Path | None,
    role: str | None,
    form: str | None,
    image: str,
    python: str,
    gpus_per_machine: int,
    places: Places,
    as_json: bool,
) -> None:
    """Write what TensorRT-LLM needs to serve MODEL.

    The same settings give the same bytes. Nothing secret is in them.
    """
    served = served_of(peek(places), model)
    served = _in_image(served, image, python, form)
    if not all(one.path for one in roles(served.path, served.trt)):
        raise Declined(f"{model}: its `path` isn't set: which checkpoint is served?")
    if form == "slurm" and out is None:
        raise click.UsageError("a Slurm job reads files: say with --out where they go")
    folder = out.absolute() if out else ELSEWHERE / served.id.replace("/", "_")
    try:
        found = _rendered(served, str(folder), form, gpus_per_machine)
        gone = _written(found, out, form) if out else NOTHING
    except (Unrenderable, NoModule, OSError) as fault:
        raise Declined(f"{model}: {fault}") from None
    if out is None:
        click.echo(found.files[chosen(found, role)], nl=False)
    elif as_json:
        told = {"folder": str(folder), "files": sorted(found.files)}
        click.echo(json.dumps(told | {"removed": gone.removed, "left": gone.changed}))
    else:
        click.echo(f"{folder}: {', '.join(sorted({name.split('/')[0] for name in found.files}))}")
        if gone.removed:
            click.echo(f"Removed, of an earlier time: {', '.join(gone.removed)}")
        if gone.changed:
            click.echo(f"Of an earlier time, and changed since: {', '.join(gone.changed)}")


def _in_image(served: Served, image: str, python: str, form: str | None) -> Served:
    """The model as it is served in the image that the command line names, if it names one."""
    if python and not (image and form == "kubernetes"):
        raise click.UsageError("--python goes with --as kubernetes and --image")
    if not image:
        return served
    return served._replace(trt=replace(served.trt, image=image, python=python))


def _written(found: Rendered, out: Path, form: str | None) -> Gone:
    """A list for Kubernetes is one file, always of the same name."""
    if form != "kubernetes":
        return rewrite(found, out)
    write(found, out)
    return NOTHING


def _rendered(served: Served, folder: str, form: str | None, gpus_per_machine: int) -> Rendered:
    if form == "kubernetes":
        text = kubernetes_yaml(served, gpus_per_machine)
        return Rendered({"kubernetes.yaml": text}, {}, Laid(folder, {}))
    found = rendered(served, folder, gpus_per_machine)
    if form == "slurm":
        found.files["slurm.sh"] = slurm_script(served, found.laid, gpus_per_machine)
    return found


def served_of(settings: Settings, name: str) -> Served:
    """The model of a name. Raises UsageError if TensorRT-LLM doesn't serve it."""
    one = model_of(settings, name)
    heard = tuple(server.guard_url for server in one.attached)
    return Served(one.id, path_of(one), one.urls, one.trt, heard)


def path_of(model: ModelSettings) -> str:
    """The checkpoint's folder. It need not be on this machine."""
    return str(Path(model.path).absolute()) if model.path else ""


def chosen(found: Rendered, role: str | None) -> str:
    """The name of the YAML to print. Raises UsageError if that isn't clear."""
    yamls = sorted(name for name in found.files if name.endswith(".yaml") and "/" not in name)
    name = f"{role}.yaml" if role else yamls[0]
    if name not in yamls or (role is None and len(yamls) > 1):
        there = ", ".join(one.removesuffix(".yaml") for one in yamls)
        raise click.UsageError(f"say with --role which to print, or --out; there are: {there}")
    return name
