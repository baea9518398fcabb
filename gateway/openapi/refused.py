"""Which of the errors a route of `/v1` may answer with."""

from __future__ import annotations

from gateway.errors import (
    TABLE,
    BadRequest,
    BodyTooLarge,
    BodyTooSlow,
    Internal,
    MethodNotAllowed,
    MissingScope,
    ModelNotFound,
    NetworkNotAllowed,
    NotFound,
    OriginNotAllowed,
    Refusal,
    Stopping,
    StoreDown,
    Unauthorized,
    UnknownField,
    UnsupportedEncoding,
)

Kinds = tuple[type[Refusal], ...]

OPEN: Kinds = (BadRequest, OriginNotAllowed, NotFound, MethodNotAllowed, Stopping, Internal)
GENERAL: Kinds = (*OPEN, Unauthorized, NetworkNotAllowed, StoreDown)  # of any known caller
SCOPED: Kinds = (*GENERAL, MissingScope)
BODY: Kinds = (BodyTooLarge, BodyTooSlow, UnsupportedEncoding, UnknownField)
MODEL = ModelNotFound
COMPLETION: Kinds = tuple(TABLE)
