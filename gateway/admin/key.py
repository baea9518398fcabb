"""The admin key: made at the first start, kept in the state folder (0600), or given by environment.

It is no tenant's key and opens nothing on `/v1`; a tenant's key opens nothing here.
"""

from __future__ import annotations

import hmac
import re
from pathlib import Path

from gateway.identity import keys
from runtime.keyring import write_once

FILE = "admin-key"
_GIVEN = re.compile(r"[\x21-\x7e]{32,512}")  # what may come by environment


class BadAdminKey(Exception):
    """The admin key can't be used; the message says why."""


class NoAdminKey(Exception):
    """This state folder has no admin key yet."""


def ensure(state_dir: Path, given: str = "") -> str:
    """The admin key of a state folder, made if there is none. Raises BadAdminKey."""
    if given:
        return _checked(given)
    path = state_dir / FILE
    if not path.exists():
        write_once(path, keys.mint(keys.ADMIN_PREFIX))
    return read(state_dir)


def read(state_dir: Path, given: str = "") -> str:
    """The admin key that a command is to use. Raises NoAdminKey or BadAdminKey."""
    if given:
        return _checked(given)
    path = state_dir / FILE
    if not path.exists():
        raise NoAdminKey(
            f"{state_dir} holds no admin key, so nothing was started there yet; "
            "name the folder with --state, or set BULKHEAD_ADMIN_KEY"
        )
    if path.stat().st_mode & 0o077:
        raise BadAdminKey(f"{path} can be read by others; make it private with chmod 600")
    secret = path.read_text("ascii", "replace").strip()
    if not keys.well_formed(secret, keys.ADMIN_PREFIX):
        raise BadAdminKey(f"{path} holds no admin key; remove it, and the next start makes one")
    return secret


def matches(authorization: str, key: str) -> bool:
    """Whether a request's `Authorization` bears the key. Takes as long for a wrong one."""
    scheme, _, secret = authorization.partition(" ")
    same = hmac.compare_digest(secret.strip().encode(), key.encode())
    return same and scheme.lower() == "bearer"


def _checked(given: str) -> str:
    if not _GIVEN.fullmatch(given) or given.startswith(keys.PREFIX):
        raise BadAdminKey(
            "BULKHEAD_ADMIN_KEY must be 32 to 512 visible ASCII characters, and no tenant's key"
        )
    return given
