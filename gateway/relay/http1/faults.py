"""How an exchange fails: before anything was sent, or after."""

from __future__ import annotations


class ConnectFailed(Exception):
    """No connection: nothing was sent, so the request may be sent elsewhere."""


class Broken(Exception):
    """The connection ended before the answer did, or brought what isn't one."""
