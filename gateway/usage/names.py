"""Who issues a bill and who provides what is on it, as [export] of the config says."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.config.sections import FileSettings


@dataclass(frozen=True, slots=True)
class Names:
    """The names in FOCUS's columns. An empty region is no region."""

    issuer: str
    provider: str
    publisher: str
    host: str
    service: str
    region: str = ""
    region_name: str = ""


def names_of(file: FileSettings) -> Names:
    """As the file says, each name that it leaves out being the next nearest one."""
    said = file.export
    issuer = said.issuer or file.name
    provider = said.provider or issuer
    return Names(
        issuer=issuer,
        provider=provider,
        publisher=said.publisher or provider,
        host=said.host or provider,
        service=said.service,
        region=said.region,
        region_name=said.region_name or said.region,
    )
