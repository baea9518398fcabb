"""How what is left out of a plain installation gets into this one."""

from __future__ import annotations

import shlex
import sys


def how_to_install(extra: str) -> str:
    """A command for this very Python: the `pip` on the PATH may be another's."""
    return f"{shlex.quote(sys.executable)} -m pip install 'bulkhead[{extra}]'"
