"""From the configuration to what is launched: rendered, placed, and refused where it isn't safe."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from engines.trtllm import command
from engines.trtllm.closure import NoModule
from engines.trtllm.command import address_of
from engines.trtllm.commands import Laid, Served, addresses
from engines.trtllm.places import is_of_this_machine
from engines.trtllm.render import Unrenderable
from engines.trtllm.rendered import rendered, write
from engines.trtllm.roles import Role, is_disaggregated, roles
from runtime.config.models import ModelSettings
from runtime.rundir import make, private, runtime_dir
from runtime.settings import Settings, environment, outside_environment, secrets_known
from runtime.trt.bind import Bind, LaunchRefused, bind_of, refuse_public
from runtime.trt.child import Command
from runtime.trt.plan import Plan
from runtime.trt.said import secrets_in

SHM = Path("/dev/shm")  # noqa: S108 - a folder of ours is made in it, or refused
NAME = "name a secret that followers must show (`trt.guard_secret`)"
PUBLIC = "say --allow-public if something else keeps strangers away from it"
NO_PROGRAM = (
    "`trt.python` and `trt.image` are both empty: nothing can be launched, only attached. Name the "
    "Python of TensorRT-LLM's own environment, or a container image"
)
Phase = Literal["serve", "context", "generation", "front"]
Runner = Literal["docker", "podman"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line says of it. None: as the configuration says."""

    phase: Phase = "serve"
    server: Bind | None = None  # which of several
    listen: Bind | None = None  # where, if not at its URL
    allow_public: bool = False
    gpus_per_machine: int = 8
    runner: Runner | None = None  # of a container


class Target(NamedTuple):
    """One server of a model, as it will be started."""

    model: ModelSettings
    served: Served
    role: Role | None  # None: the front of several
    place: Bind  # by which others know it
    bind: Bind  # where it listens

    @property
    def id(self) -> str:
        """Tells it from any other server of this machine."""
        name = "".join(c if c.isalnum() else "-" for c in self.model.id).strip("-")
        return f"{name}-{self.bind.port}"


def target_of(model: ModelSettings, wish: Wish) -> Target:
    """Which server is meant. Raises LaunchRefused."""
    path = str(Path(model.path).absolute()) if model.path else ""
    served = Served(model.id, path, model.urls, model.trt)
    if not (model.trt.python or model.trt.image):
        raise LaunchRefused(f"{model.id}: {NO_PROGRAM}")
    role = _role(served, wish)
    every = [Bind(*at) for at in (addresses(role, served.urls) if role else [_front(served)])]
    chosen = [at for at in every if wish.server in (None, at)]
    if len(chosen) != 1:
        raise LaunchRefused(f"say with --server which to launch: {', '.join(map(str, every))}")
    target = Target(model, served, role, chosen[0], wish.listen or chosen[0])
    if role and not Path(role.path or "/no").is_dir():
        raise LaunchRefused(
            f"{model.id}: there is no folder {role.path!r}: which checkpoint is served?"
        )
    if role and role.ranks > wish.gpus_per_machine:
        raise LaunchRefused(
            f"a server of {role.ranks} GPUs spans machines of {wish.gpus_per_machine}: what starts "
            "it there, such as Slurm, is beyond this command; see `bulkhead trt render`"
        )
    if not wish.allow_public:
        refuse_public(target.bind, "trtllm-serve, which asks nobody for a key,", PUBLIC)
    return target


def plan_of(target: Target, settings: Settings, wish: Wish) -> Plan:
    """Its files are written, and its folders made. Raises LaunchRefused, StateInUse or OSError."""
    served, role = target.served, target.role
    folder = settings.state_dir / "trt" / target.id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    try:
        files = rendered(served, str(folder), wish.gpus_per_machine)
        write(files, folder)
    except (Unrenderable, NoModule) as fault:
        raise LaunchRefused(f"{served.id}: {fault}") from None
    named = [secret.name for secret in secrets_known(settings)]
    outside = outside_environment(named)
    made = _Making(target, files.laid, outside, _runner(target, wish), _mark(settings, target))
    is_guarded = served.trt.guard and role is not None
    return Plan(
        model=served.id,
        name=target.model.upstream_model or served.id,
        bind=target.bind,
        command=made.command,
        guards=_guards(settings, target) if is_guarded else None,
        warden_env=outside | _python_path(),
        secrets=(*settings.secrets.values(), *secrets_in(environment())),
    )


class _Making(NamedTuple):
    """Makes the command of each start."""

    target: Target
    laid: Laid
    outside: dict[str, str]
    runner: Runner
    mark: str

    def command(self, guards: Path | None) -> Command:
        """Of the start whose guard has this folder."""
        trt = self.target.served.trt
        env = command.ENVIRONMENT
        if guards:
            env = command.environment(trt, self.laid.python, str(guards))
        line, clear = self._line(), []
        if trt.image:
            line = self._contained(line, env, guards)
            clear = [[self.runner, "rm", "-f", self._container]]
        return Command(
            command=line,
            env=self.outside | env,
            folder=self.laid.folder,
            mark=self.mark,
            clear=clear,
        )

    def _line(self) -> list[str]:
        target, laid = self.target, self.laid
        if target.role is None:
            return command.front(target.served.trt, f"{laid.folder}/front.yaml")
        at = command.Address(*target.bind)
        path = laid.checkpoint(target.role)
        return command.serve(target.served.trt, target.role, laid.config(target.role), at, path)

    @property
    def _container(self) -> str:
        return f"bulkhead-trt-{self.target.id}"

    def _contained(self, line: list[str], env: dict[str, str], guards: Path | None) -> list[str]:
        """In a container of this user's: what it writes has to be ours to read."""
        role, trt = self.target.role, self.target.served.trt
        mounts = {self.laid.folder: False} | ({role.path: False} if role else {})
        if guards:
            mounts[str(guards)] = True
        user = f"{os.getuid()}:{os.getgid()}" if os.getuid() else ""
        made = command.container(trt.image, line, env, mounts, role.ranks if role else 0, user)
        named = ["--name", self._container]
        if self.runner == "podman":
            at = made.index("--gpus")
            made[at : at + 2] = ["--device", "nvidia.com/gpu=all"] if role else []
            named += ["--userns", "keep-id"] if user else []
        elif role is None:
            at = made.index("--gpus")
            del made[at : at + 2]
        return [self.runner, "run", *named, *made[2:]]


def events_bind(target: Target, listen: Bind | None, *, allow_public: bool) -> Bind | None:
    """Where this server's guard is told of; None: nowhere but on this machine.

    Raises LaunchRefused.
    """
    urls = [one.guard_url for one in target.model.attached if _is(one.url, target.place)]
    url = next(filter(None, [*urls, target.served.trt.guard_url]), "")
    where = listen or (bind_of(url, "guard_url") if url else None)
    if where and not allow_public:
        refuse_public(where, "the guard's events", PUBLIC)
    trt = target.served.trt
    if where and trt.guard and not (trt.guard_secret or is_of_this_machine(where.host)):
        raise LaunchRefused(f"the guard's events would be told to anybody who asks {where}; {NAME}")
    return where


def socket_of(state_dir: Path, target: Target) -> Path:
    """Where commands of this user ask how it does."""
    return runtime_dir(state_dir) / f"trt-{_digest(target.id)}.sock"


def sockets(state_dir: Path) -> list[Path]:
    """Those of all launchers on a state folder; some may have been killed."""
    return sorted(runtime_dir(state_dir).glob("trt-*.sock"))


def _role(served: Served, wish: Wish) -> Role | None:
    every = {role.phase: role for role in roles(served.path, served.trt)}
    if wish.phase == "front" and is_disaggregated(served.trt):
        return None
    for phase, role in every.items():
        if phase == wish.phase:
            return role
    if not is_disaggregated(served.trt):
        raise LaunchRefused(f"{served.id}: each of its servers does all of it: leave --role out")
    there = [*every, "front"]
    raise LaunchRefused(f"{served.id}: say with --role which to launch: {', '.join(there)}")


def _front(served: Served) -> tuple[str, int]:
    return address_of(served.urls[0])


def _is(url: str, bind: Bind) -> bool:
    return Bind(*address_of(url)) == bind


def _runner(target: Target, wish: Wish) -> Runner:
    """Raises LaunchRefused where a container is to be run, and nothing here can."""
    found = wish.runner or ("docker" if shutil.which("docker") else "podman")
    if target.served.trt.image and not shutil.which(found):
        raise LaunchRefused(f"{found} isn't on the PATH, which is to run {target.served.trt.image}")
    return found


def _guards(settings: Settings, target: Target) -> Path:
    """The folder of the guards' folders, in memory where there is such a file system."""
    near = SHM if os.access(SHM, os.W_OK) else make(settings.state_dir)
    folder = private(near / f"bulkhead-trt-{os.getuid()}-{_mark(settings, target)}")
    for left in folder.iterdir():  # by a launcher that was killed
        shutil.rmtree(left, ignore_errors=True)
    return folder


def _mark(settings: Settings, target: Target) -> str:
    return _digest(f"{settings.state_dir}\0{target.id}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _python_path() -> dict[str, str]:
    """For the warden, which is ours: found as this process was."""
    given = environment().get("PYTHONPATH")
    return {"PYTHONPATH": given} if given else {}
