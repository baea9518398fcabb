"""What is to be built, and of what: everything that the artefact's bytes depend on.

Two plans with the same key lead to the same artefact. No torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engines.build.artefact import TOKENIZER_FILES
from engines.build.publish import sha256
from engines.build.shape import Shape, UnsuitableModel
from engines.build.tensorfile import files_of

WEIGHTS = ("int4-awq", "bf16")
KV = ("fp8", "bf16")
GROUPS = (64, 128)
QUANTIZERS = ("bulkhead", "modelopt")
BUILDER_VERSION = 2  # raise it when the same plan would lead to other bytes
LIBRARIES = ("numpy", "safetensors", "tokenizers", "torch", "nvidia-modelopt", "transformers")


class BuildError(Exception):
    """Why nothing was built, in one sentence."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for."""

    weights: str = "int4-awq"
    kv: str = "fp8"
    group: int = 64  # inputs that share a scale
    quantizer: str = "bulkhead"


@dataclass(frozen=True, slots=True)
class Plan:
    """Digests of what goes in, and the options."""

    source: dict[str, str]  # SHA-256 by file
    calibration: str  # SHA-256
    options: Options
    libraries: dict[str, str]

    @property
    def key(self) -> str:
        """One digest over all of it."""
        told = json.dumps({**asdict(self), "builder": BUILDER_VERSION}, sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    @property
    def source_digest(self) -> str:
        """One digest over the files of the source."""
        return hashlib.sha256(json.dumps(self.source, sort_keys=True).encode()).hexdigest()

    def told(self) -> dict[str, Any]:
        """For build.json."""
        return {
            "key": self.key,
            "builder": BUILDER_VERSION,
            "options": asdict(self.options),
            "source": {"sha256": self.source_digest, "files": self.source},
            "calibration": {"sha256": self.calibration},
            "libraries": self.libraries,
        }


def plan(source: Path, calibration: Path, options: Options) -> Plan:
    """Reads all files once. Raises BuildError or BadTensorFile."""
    names = ("config.json", *TOKENIZER_FILES)
    if not calibration.is_file():  # a pipe has its text once, and it is read twice
        raise BuildError(f"the calibration text {calibration} must be a file")
    try:
        paths = [source / name for name in names if (source / name).is_file()]
        digests = {path.name: sha256(path) for path in [*paths, *files_of(source)]}
        text = sha256(calibration)
    except OSError as error:
        raise BuildError(f"cannot read {error.filename}: {error.strerror}") from error
    needed = LIBRARIES if options.quantizer == "modelopt" else LIBRARIES[:4]
    return Plan(dict(sorted(digests.items())), text, options, _versions(needed))


def check_group(shape: Shape, options: Options) -> None:
    """Raises BuildError if the groups don't divide the inputs of every matrix."""
    if options.weights != "int4-awq":
        return
    for name, (rows, columns) in shape.linears().items():
        if columns % options.group:
            fits = all(inputs % min(GROUPS) == 0 for _, inputs in shape.linears().values())
            instead = f"--group {min(GROUPS)}" if fits else "--weights bf16"
            raise BuildError(
                f"groups of {options.group} don't divide the {columns} inputs of {name}; "
                f"try {instead}"
            )
        if rows % 2:
            raise UnsuitableModel(f"{name} has {rows} outputs; two of them share a byte")


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
