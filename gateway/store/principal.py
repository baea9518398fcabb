"""Who is calling, and all that is known of them while they are served; kept in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.config.networks import Network

DEFAULT_SCOPES = frozenset({"inference", "models:read", "usage:read"})
ADMIN = "admin"  # all scopes
ALL_SCOPES = DEFAULT_SCOPES | {"keys:write", ADMIN}
SECRET_NAME_LEN = (
    12  # bytes of a secret's digest: enough to tell secrets apart, and of no other use
)


@dataclass(frozen=True, slots=True)
class Principal:
    """A tenant, by one of its keys, or by a subject whom an issuer of its vouches for."""

    tenant_id: str
    tenant_name: str
    key_id: str | None = None  # None: a token of an issuer's
    subject: str | None = None  # "issuer|sub" of such a token
    project_id: str | None = None
    scopes: frozenset[str] = DEFAULT_SCOPES
    models: frozenset[str] | None = None  # None: all
    networks: tuple[Network, ...] | None = None  # where it may call from; None: anywhere
    expires_at: int | None = None  # microseconds UTC: from then on it's nobody's
    origin: str | None = None  # of the one web page that a minted token is for
    token_id: str | None = None  # of a minted token
    weight: int = 1  # the tenant's share where several wait
    timezone: str = "UTC"  # the tenant's, for the windows of its budgets
    base: Principal | None = field(default=None, compare=False, repr=False)  # whose token it is
    secret: bytes = field(default=b"", compare=False, repr=False)  # names the secret; tells nothing


def granted(text: str) -> frozenset[str]:
    """What scopes in a row, or in a claim, allow: one that we don't know allows nothing."""
    found = frozenset(text.split())
    return ALL_SCOPES if ADMIN in found else found & ALL_SCOPES
