"""A model's servers as one Slurm job: a script for `sbatch`, rendered from the same settings.

Each server is a step on the node that its URL names. One that needs more GPUs than a node has gets
further nodes of the job, and its ranks are laid out so that the first, which serves, is on its own.
Steps share the nodes' cores and memory, which the job has whole, and each is told its own GPUs: a
step that asks Slurm for its share would get a core a rank.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from engines.trtllm import command
from engines.trtllm.command import Address, address_of
from engines.trtllm.commands import WATCHED, Laid, Place, Served, places
from engines.trtllm.render import Unrenderable
from engines.trtllm.roles import is_disaggregated

# Of shell: what is the same for each model.
START = """\
# Nodes that no server is named after are given to those that span several.
named=({named})
mapfile -t spare < <(scontrol show hostnames "$SLURM_JOB_NODELIST" \\
  | grep -vxF -f <(printf '%s\\n' "${{named[@]}}") || true)

# start NAME NODE NODES RANKS COMMAND...: a server whose first rank is on NODE, in the background.
start() {{
  local name=$1 node=$2 num_nodes=$3 ranks=$4
  shift 4
  local nodes=("$node" "${{spare[@]:0:num_nodes - 1}}")
  spare=("${{spare[@]:num_nodes - 1}}")
  if ((${{#nodes[@]}} < num_nodes)); then
    echo "$name needs $num_nodes nodes, and the job has too few" >&2
    return 1
  fi
  local hosts=$SLURM_SUBMIT_DIR/$name.$SLURM_JOB_ID.hosts
  for ((rank = 0; rank < ranks; rank++)); do
    echo "${{nodes[rank / {gpus}]}}"
  done >"$hosts"
  SLURM_HOSTFILE=$hosts srun --job-name="$name" --distribution=arbitrary \\
    --nodes="$num_nodes" --ntasks="$ranks" --overlap --cpu-bind=none --mpi=pmix \\
    --kill-on-bad-exit=1 --output="$name.%j.%t.log" "$@" &
}}
"""
# A folder for each server's guard, which nobody else may have put there. Its ranks share it.
FOLDER = '"$BULKHEAD_GUARD_DIR"'
WATCHING = f'mkdir -m 700 {FOLDER} 2>/dev/null || [ -O {FOLDER} ] || exit 1; exec "$@"'
WIDTH = 94  # characters, and the backslash
UNEXPANDED = "# shellcheck disable=SC2016 # they are the step's variables"


class Step(NamedTuple):
    """One server: where, and on how many nodes and GPUs."""

    name: str
    at: Address
    num_nodes: int
    gpus: int
    line: str


def slurm_script(model: Served, laid: Laid, gpus_per_machine: int = 8) -> str:
    """The script, byte for byte the same for the same settings. Raises Unrenderable."""
    if model.needs_launchers:
        raise Unrenderable(
            "what the guard saw is told by `bulkhead trt launch`, which no step of a job runs: "
            "serve with a release that has the hook, and without `guard_url`"
        )
    steps = list(_steps(model, laid, gpus_per_machine))
    named = list(dict.fromkeys(step.at.host for step in steps))
    _check(named)
    num_nodes = len(named) + sum(step.num_nodes - 1 for step in steps)
    lines = [*_head(model, named, num_nodes, gpus_per_machine)]
    lines += START.format(named=shlex.join(named), gpus=gpus_per_machine).splitlines()
    for step in steps:
        lines += ["", f"# {step.name}: {_gpus(step.gpus)}, at {step.at.host}:{step.at.port}"]
        lines += [UNEXPANDED, step.line] if model.trt.guard and step.gpus else [step.line]
    return "\n".join([*lines, "", *_tail()]) + "\n"


def _head(model: Served, named: list[str], num_nodes: int, gpus: int) -> Iterator[str]:
    yield "#!/bin/bash"
    yield f"# {model.id}: TensorRT-LLM {model.trt.version} as a Slurm job."
    yield "# Written by `bulkhead trt render --as slurm`, beside the files that it names, which all"
    yield "# nodes must see. Change the model's [models.trt] and render it anew."
    yield "# Nothing here asks callers for a key: let nobody but the gateway reach these nodes."
    yield f"#SBATCH --job-name={_word(model.id)}"
    yield f"#SBATCH --nodes={num_nodes}"
    yield f"#SBATCH --nodelist={','.join(named)}"
    yield f"#SBATCH --gpus-per-node={gpus}"
    yield "#SBATCH --exclusive"
    yield "#SBATCH --mem=0"
    yield "#SBATCH --signal=B:TERM@120"
    yield "set -euo pipefail"
    for name, value in sorted(command.ENVIRONMENT.items()):
        yield f"export {name}={shlex.quote(value)}"
    yield ""


def _gpus(number: int) -> str:
    return f"{number or 'no'} GPU{'' if number == 1 else 's'}"


def _tail() -> Iterator[str]:
    yield "# One that ends has failed: the others end too, and Slurm may start the job again."
    yield "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT TERM"
    yield "wait -n"
    yield "exit 1"


def _steps(model: Served, laid: Laid, gpus_per_machine: int) -> Iterator[Step]:
    trt, numbers = model.trt, Counter[str]()
    for place in places(model, gpus_per_machine):
        role, at = place.role, place.at
        run = command.serve(trt, role, laid.config(role), at, laid.checkpoint(role))
        run = [command.program(trt, "trtllm-llmapi-launch"), *run]
        if trt.guard:
            run = ["sh", "-c", WATCHING, "sh", *run]
        run = ["env", *_environment(model, laid, place), *run]
        name = f"{role.phase}-{numbers[role.phase]}"
        numbers[role.phase] += 1
        num_nodes = -(-role.ranks // gpus_per_machine)
        words = [*_container(model, laid, role.path), *run]
        yield _step(name, at, num_nodes, role.ranks, words)
    if is_disaggregated(trt):
        at = address_of(model.urls[0])
        run = command.front(trt, f"{laid.folder}/front.yaml")
        yield _step("front", at, 1, 0, [*_container(model, laid, model.path), *run])


def _environment(model: Served, laid: Laid, place: Place) -> list[str]:
    """What a server is told beside its command."""
    env = command.environment(model.trt, laid.python, WATCHED.format(port=place.at.port))
    if place.gpus:
        env[command.DEVICES] = ",".join(map(str, place.gpus))
    return [f"{name}={value}" for name, value in sorted(env.items())]


def _step(name: str, at: Address, num_nodes: int, gpus: int, run: list[str]) -> Step:
    words = ["start", name, at.host, str(num_nodes), str(gpus or 1), *run]
    return Step(name, at, num_nodes, gpus, _folded(words))


def _folded(words: list[str]) -> str:
    """A command over several lines, as a shell reads them."""
    lines = [""]
    for word in map(shlex.quote, words):
        if lines[-1] and len(lines[-1]) + len(word) > WIDTH:
            lines.append(" ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def _container(model: Served, laid: Laid, path: str) -> list[str]:
    """Options of pyxis, which runs steps in containers."""
    if not model.trt.image:
        return []
    folders = sorted({laid.folder, path})
    mounts = ",".join(f"{command.mountable(folder)}:{folder}:ro" for folder in folders)
    watched = ",/dev/shm:/dev/shm" if model.trt.guard else ""
    return [f"--container-image={model.trt.image}", f"--container-mounts={mounts}{watched}"]


def _check(named: list[str]) -> None:
    for host in named:
        if host in ("localhost", "127.0.0.1", "::1") or _word(host) != host:
            raise Unrenderable(f"{host} is no node's name: give the model's URLs those of nodes")


def _word(text: str) -> str:
    """What a line for sbatch may hold of a name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).strip("-")
