"""A ledger over a real store, and what is done to it behind its back."""

from __future__ import annotations

from tests.gateway.ledger.conftest import clock, ledger, path, writer

__all__ = ["clock", "ledger", "path", "writer"]
