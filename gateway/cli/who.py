"""Who runs a command here, for the audit log."""

from __future__ import annotations

import os
import pwd


def user() -> str:
    """The name, or the number where the machine has no name for it."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
