"""What a worker process does first: a request may wait for all that it imports.

This module is the first of ours that the process imports, to find `load_app`; so it imports little.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from starlette.types import ASGIApp

    from runtime.deploy.reload import Told

if "--multiprocessing-fork" in sys.orig_argv:  # in the parent, too, this is imported
    gc.disable()  # until it serves: what is loaded stays, and to look for garbage in it takes long
    # structlog imports rich, and httpx click, wherever they are installed: for a terminal, and a
    # worker has none.
    for name in ("rich", "click"):
        sys.modules[name] = None  # type: ignore[assignment]

APP = "gateway.app:from_parent"


def load_app(pipe: Connection, listener: int, told: Told) -> ASGIApp:
    """In the worker. By name, so that no parent loads the app."""
    module, _, name = APP.partition(":")
    parent = import_module("gateway.processes.parent").Parent(pipe, listener, told)
    app: ASGIApp = getattr(import_module(module), name)(parent)
    return app
