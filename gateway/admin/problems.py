"""Every way in which the admin API refuses, as RFC 9457 problems, and the one table of them.

Problem
├── BadParameter        a query parameter is wrong
├── Unauthorized        no admin key, or not ours
├── NoSuchRoute
├── NoSuchModel         no host of ours serves it
├── WrongMethod
├── WrongHost           called by a name that isn't ours: a web page may have rebound it
├── TooManyTails        so many listen already
├── NodeUnreachable     no node answers on this state folder
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


class Unauthorized(Problem):
    """No admin key was sent, or it isn't ours."""


class NoSuchRoute(Problem):
    """There is no such route."""


class NoSuchModel(Problem):
    """No host of ours serves this model."""


class WrongMethod(Problem):
    """The route exists, for another method."""


class WrongHost(Problem):
    """The request was addressed to a name that isn't ours."""


class TooManyTails(Problem):
    """So many listen already that another would cost those who call."""


class NodeUnreachable(Problem):
    """No node answers on this state folder."""


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
    Unauthorized: Row(401, "wrong-key", "The admin key is missing or wrong"),
    NoSuchRoute: Row(404, "route-not-found", "There is no such route"),
    NoSuchModel: Row(404, "model-not-found", "No host of ours serves this model"),
    WrongMethod: Row(405, "method-not-allowed", "The route takes another method"),
    WrongHost: Row(421, "wrong-host", "The request was meant for another host"),
    TooManyTails: Row(429, "too-many-tails", "Too many listen already"),
    Broken: Row(500, "internal-error", "A bug of ours"),
    NodeUnreachable: Row(503, "node-unreachable", "No node answers"),
    StoreUnreachable: Row(503, "store-unreachable", "The store can't be read"),
}
