"""How a change is made: read, checked, done and written down in one transaction, once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.changes.idempotency import Answer, Once
from gateway.admin.problems import (
    BadBody,
    BodyTooLarge,
    Conflict,
    NoSuchResource,
    NotJson,
    Problem,
    StoreUnreachable,
)
from gateway.budgets.budgets import BudgetArchived, BudgetError, NoSuchBudget, NoSuchScope
from gateway.clock import SYSTEM_CLOCK
from gateway.identity.api_keys import KeyRevoked, NoSuchKey
from gateway.identity.projects import NoSuchProject, ProjectExists
from gateway.identity.tenants import NoSuchTenant, TenantError, TenantExists
from gateway.limits.setting import LimitError
from gateway.money.errors import MoneyError
from gateway.root import RootSecretLost, keyring_of
from gateway.store.audit import Actor, acting
from gateway.store.connection import open_for_writing, transaction
from gateway.store.errors import StoreError
from gateway.store.hold import using
from gateway.store.reader import read
from gateway.store.sql import Connection
from gateway.stores import database_of
from runtime.keyring import BadRootSecret, Keyring
from runtime.settings import Settings

MAX_BODY_BYTES = 64 * 1024
JSON = "application/json"
ACTOR = "admin"

T = TypeVar("T", bound=msgspec.Struct)
Work = Callable[[Connection, Keyring], Any]  # to what is answered, as JSON


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what a route takes."""


class Nothing(Body, frozen=True):
    """A route that takes no body, or an empty object."""


class Changing:
    """Makes changes in the store of the settings that are in force."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self.settings = settings

    async def change(
        self, request: Request, body: bytes, work: Work, status: int = 200
    ) -> Response:
        """Do `work` in a transaction, once if the call has an Idempotency-Key."""
        answer = await to_thread.run_sync(self._change, request, body, work, status)
        media = JSON if answer.body else None
        return Response(answer.body, answer.status, media_type=media)

    async def read(self, query: Callable[[Connection], Any]) -> Any:
        """Ask the store. Raises a Problem."""
        return await to_thread.run_sync(self._read, query)

    def _change(self, request: Request, body: bytes, work: Work, status: int) -> Answer:
        settings, now_us = self.settings(), SYSTEM_CLOCK.now_us()
        actor = Actor("admin", ACTOR, request.state.request_id)
        try:
            root, database = keyring_of(settings), database_of(settings)
            once = _once(request, body, root)
            with (
                acting(actor),
                using(database) if isinstance(database, Path) else nullcontext(),
                closing(open_for_writing(database)) as db,
                transaction(db),
            ):
                if once and (before := once.answered(db, now_us)):
                    return before
                found = work(db, root)
                told = b"" if found is None else msgspec.json.encode(found)
                answer = Answer(status if told else 204, told)
                if once:
                    once.keep(db, answer, now_us)
                return answer
        except Exception as fault:
            raise as_problem(fault) from fault

    def _read(self, query: Callable[[Connection], Any]) -> Any:
        try:
            return read(database_of(self.settings()), query)
        except Exception as fault:
            raise as_problem(fault) from fault


def _once(request: Request, body: bytes, root: Keyring) -> Once | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    said = f"{request.method} {request.url.path}\n".encode() + body
    return Once(root, ACTOR, key, said)


async def body_of(request: Request) -> bytes:
    """The body, whole. Raises NotJson or BodyTooLarge."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"the body is over {MAX_BODY_BYTES} bytes")
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and media != JSON:
        raise NotJson(f"send the body as {JSON}")
    return body


def decoded(body: bytes, kind: type[T]) -> T:
    """What a body says. Raises BadBody, with the path of the fault."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise BadBody(f"the body: {fault}") from None


def as_problem(fault: Exception) -> Exception:
    """The problem that a fault of the store's, or of who asked, is told as; else itself."""
    for kinds, problem in PROBLEMS:
        if isinstance(fault, kinds):
            return problem(UNWRITABLE if kinds is StoreError else str(fault))
    return fault


UNWRITABLE = "the store can't be used just now; try again"
# The first that fits.
PROBLEMS: tuple[tuple[Any, type[Problem]], ...] = (
    (NoSuchTenant | NoSuchProject | NoSuchKey | NoSuchScope | NoSuchBudget, NoSuchResource),
    (TenantExists | ProjectExists | KeyRevoked | BudgetArchived, Conflict),
    (TenantError | BudgetError | LimitError | MoneyError | ValueError, BadBody),
    (RootSecretLost | BadRootSecret, StoreUnreachable),
    (StoreError, StoreUnreachable),
)
