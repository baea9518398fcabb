"""Every way in which the admin API refuses, as RFC 9457 problems, and the one table of them.

Problem
├── BadParameter        a query parameter is wrong
├── BadHeader           a header is wrong
├── BadBody             the body is wrong, or asks for what can't be
├── NotJson             the body is something else
├── BodyTooLarge        the body is longer than any that makes sense
├── Unauthorized        no admin key, or not ours
├── NoSuchRoute
├── NotDevelopment      only `bulkhead dev` plants faults
├── NoSuchModel         no host of ours serves it
├── NoSuchHost          the node has none of this id
├── NoPages             the host's engine keeps nothing in pages
├── NoSuchResource      no tenant, project, key, budget or record of this name
├── Conflict            the name is taken, or the thing has ended
├── KeyReused           an Idempotency-Key came with another request before
├── NoSuchFault         no such kind can be planted there
├── FaultImpossible     there is nothing just now that the fault could be planted in
├── WrongMethod
├── WrongHost           called by a name that isn't ours: a web page may have rebound it
├── TooManyTails        so many listen already
├── NodeUnreachable     no node answers on this state folder
├── HostUnreachable     a host doesn't answer
├── StoreUnreachable    the store can't be read
└── Broken              a bug of ours
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Problem(Exception):
    """Base. `detail` says what was wrong and what to do; `headers` go with the answer."""

    def __init__(self, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @property
    def row(self) -> Row:
        """This problem's row in the table."""
        return TABLE[type(self)]

    def body(self, request_id: str) -> dict[str, Any]:
        """The problem's five members. `type` is a name to branch on, not an address."""
        return {
            "type": f"urn:bulkhead:problem:{self.row.name}",
            "title": self.row.title,
            "status": self.row.status,
            "detail": self.detail,
            "instance": request_id,
        }


class BadParameter(Problem):
    """A query parameter is wrong, or unknown."""


class BadHeader(Problem):
    """A header is wrong."""


class BadBody(Problem):
    """The body isn't what the route takes, or asks for what can't be."""


class NotJson(Problem):
    """The body isn't JSON, by its content type."""


class BodyTooLarge(Problem):
    """The body is longer than any that makes sense."""


class NoSuchResource(Problem):
    """There is no tenant, project, key, budget or record of this name."""


class Conflict(Problem):
    """The name is taken, or the thing has ended."""


class KeyReused(Problem):
    """An Idempotency-Key came with another request before."""


class Unauthorized(Problem):
    """No admin key was sent, or it isn't ours."""


class NoSuchRoute(Problem):
    """There is no such route."""


class NoSuchModel(Problem):
    """No host of ours serves this model."""


class NotDevelopment(Problem):
    """Faults are planted under `bulkhead dev` alone."""


class NoSuchHost(Problem):
    """The node has no such host."""


class NoPages(Problem):
    """The host's engine keeps nothing in pages."""


class NoSuchFault(Problem):
    """No fault of this kind can be planted in the model's engine."""


class FaultImpossible(Problem):
    """There is nothing just now that the fault could be planted in."""


class WrongMethod(Problem):
    """The route exists, for another method."""


class WrongHost(Problem):
    """The request was addressed to a name that isn't ours."""


class TooManyTails(Problem):
    """So many listen already that another would cost those who call."""


class NodeUnreachable(Problem):
    """No node answers on this state folder."""


class HostUnreachable(Problem):
    """A host doesn't answer: it starts, or it has just ended."""


class StoreUnreachable(Problem):
    """The store can't be read."""


class Broken(Problem):
    """A bug of ours."""


@dataclass(frozen=True, slots=True)
class Row:
    """How a problem looks in HTTP."""

    status: int
    name: str
    title: str


TABLE: dict[type[Problem], Row] = {
    BadParameter: Row(400, "invalid-parameter", "A query parameter is wrong"),
    BadHeader: Row(400, "invalid-header", "A header is wrong"),
    BadBody: Row(400, "invalid-body", "The body is wrong"),
    Unauthorized: Row(401, "wrong-key", "The admin key is missing or wrong"),
    NotDevelopment: Row(403, "not-development", "Only a development server does this"),
    NoSuchRoute: Row(404, "route-not-found", "There is no such route"),
    NoSuchModel: Row(404, "model-not-found", "No host of ours serves this model"),
    NoSuchHost: Row(404, "host-not-found", "The node has no such host"),
    NoPages: Row(404, "no-pages", "The host's engine keeps nothing in pages"),
    NoSuchFault: Row(404, "fault-not-found", "No such fault can be planted there"),
    NoSuchResource: Row(404, "not-found", "There is no such thing"),
    WrongMethod: Row(405, "method-not-allowed", "The route takes another method"),
    FaultImpossible: Row(409, "fault-impossible", "There is nothing to plant the fault in"),
    Conflict: Row(409, "state-conflict", "What is there is in the way"),
    BodyTooLarge: Row(413, "body-too-large", "The body is too long"),
    NotJson: Row(415, "not-json", "The body must be JSON"),
    WrongHost: Row(421, "wrong-host", "The request was meant for another host"),
    KeyReused: Row(422, "idempotency-key-reused", "The Idempotency-Key is another request's"),
    TooManyTails: Row(429, "too-many-tails", "Too many listen already"),
    Broken: Row(500, "internal-error", "A bug of ours"),
    NodeUnreachable: Row(503, "node-unreachable", "No node answers"),
    HostUnreachable: Row(503, "host-unreachable", "The host doesn't answer"),
    StoreUnreachable: Row(503, "store-unreachable", "The store can't be read"),
}
