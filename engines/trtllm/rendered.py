"""Everything that a model's servers need, as files of one folder: by name, before any is written.

The folder's own path is in them. The same settings, checkpoint and folder give the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from engines.trtllm import bf16_view
from engines.trtllm.closure import GUARD, closure
from engines.trtllm.command import address_of
from engines.trtllm.commands import Laid, Served, command_text
from engines.trtllm.disaggregated import disaggregated_yaml
from engines.trtllm.manifest import has
from engines.trtllm.render import serve_yaml
from engines.trtllm.roles import is_disaggregated, roles
from engines.trtllm.settings import TrtSettings


class Rendered(NamedTuple):
    """Files by name, links by name and where each leads, and what lies where then."""

    files: dict[str, str]
    links: dict[str, str]
    laid: Laid


def rendered(model: Served, folder: str, gpus_per_machine: int = 8) -> Rendered:
    """What belongs into a folder. Raises Unrenderable, NoModule, or OSError."""
    trt = model.trt
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    views: dict[str, str] = {}
    for role in roles(model.path, trt):
        files[f"{role.phase}.yaml"] = serve_yaml(model.id, trt, role)
        source = Path(role.path)
        if role.kv_dtype == "bf16" and (changed := bf16_view.changed(source)):
            view = "checkpoint" if role.phase == "serve" else f"checkpoint-{role.phase}"
            views[role.phase] = view
            files |= {f"{view}/{name}": text for name, text in changed.items()}
            others = bf16_view.links(source, changed)
            links |= {f"{view}/{name}": target for name, target in others.items()}
    if is_disaggregated(trt):
        at = address_of(model.urls[0])
        files["front.yaml"] = disaggregated_yaml(model.id, model.path, trt, *at)
    if trt.guard:
        files |= {f"python/{path}": source for path, source in guard(trt).items()}
    laid = Laid(folder, views)
    files["command.txt"] = command_text(model, laid, gpus_per_machine)
    return Rendered(files, links, laid)


def guard(trt: TrtSettings) -> dict[str, str]:
    """The guard's modules for a release. Raises NoModule."""
    return closure(GUARD if has(trt.version, "post_processor_hook") else GUARD[:1])


def write(found: Rendered, folder: Path) -> None:
    """Write it all, in place of what is there by these names. Raises OSError."""
    for name in (*found.files, *found.links):
        inside = (folder / name).parent
        inside.mkdir(parents=True, exist_ok=True)
        if inside.resolve() != folder.resolve() / Path(name).parent:
            raise OSError(f"{inside} is behind a link: what it leads to isn't ours to write into")
    for name, text in found.files.items():
        path = folder / name
        path.unlink(missing_ok=True)  # it may be a link from before, to a file that isn't ours
        path.write_text(text, "utf-8")
    for name, target in found.links.items():
        path = folder / name
        path.unlink(missing_ok=True)
        path.symlink_to(target)
