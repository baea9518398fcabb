"""Which version of Bulkhead this is."""

from __future__ import annotations

from importlib import metadata

PACKAGE = "bulkhead"


def version() -> str:
    """As it was installed; "unknown" where the code was only copied."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "unknown"
