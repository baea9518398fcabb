"""Every way to refuse a request, and the one table from it to HTTP.

Refusal
├── BadRequest              the body or a field of it is wrong
│   ├── UnknownField        a field that no client of ours may send
│   ├── Unsupported         documented by OpenAI, but it would change the answer and we can't
│   ├── ContextTooLong      the prompt fills the model's context
│   └── RequestOverLimit    it may take more than a limit ever lets in
├── BodyTooLarge            refused before it is read whole
├── BodyTooSlow             its end didn't come in time
├── UnsupportedEncoding     a compressed body
├── Unauthorized            no key, or none of ours
├── OriginNotAllowed        a web page that may not call, or not with this key
├── CurrencyNotBudgeted     the model is priced in another currency than a budget
├── InsufficientQuota       it doesn't fit into a budget
├── MissingScope            the key may not do this
├── NetworkNotAllowed       the key may not be used from there
├── NotFound                no such route
├── ModelNotFound           unknown, or not the caller's: the two look the same
├── MethodNotAllowed
├── LimitExceeded           as much as may be taken has been; it can be tried again
├── Unavailable             no engine can answer now
│   ├── IntegrityAbort      a page tag differed; the request was stopped before it read the page
│   ├── StoreDown           keys can't be checked or usage can't be recorded
│   ├── QueueFull           as many requests wait for the model as may
│   ├── ModelFailed         its engine fails again and again
│   ├── GatewayBusy         too many requests at once
│   ├── LimitsUnavailable   limits can't be counted, and may not be passed meanwhile
│   └── Stopping            the server stopped before the answer's end
├── UpstreamFailed          the engine broke, or answered nonsense
├── UpstreamTimeout         the engine was silent too long
├── TookTooLong             the request as a whole took too long
└── Internal                a bug of ours
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Refusal(Exception):
    """Base. `message` is for the client: what was wrong, where, and what to do."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self._code = code
        self._retry_after_s = retry_after_s
        self.reason = ""  # for the operator's log alone: clients are told the same of every bad key

    @property
    def row(self) -> Row:
        """This error's row in the table."""
        return TABLE[type(self)]

    @property
    def code(self) -> str:
        """The stable code that clients may branch on."""
        return self._code or self.row.code

    @property
    def retry_after_s(self) -> int | None:
        """When to try again, if that is known."""
        return self.row.retry_after_s if self._retry_after_s is None else self._retry_after_s

    def body(self) -> dict[str, Any]:
        """OpenAI's error object, all four keys."""
        return {
            "error": {
                "message": self.message,
                "type": self.row.type,
                "param": self.param,
                "code": self.code,
            }
        }


class BadRequest(Refusal):
    """The body, or a field of it, is wrong."""


class UnknownField(BadRequest):
    """A field that no client of ours may send."""


class Unsupported(BadRequest):
    """A field of OpenAI's that would change the answer, and that no engine here honours."""


class ContextTooLong(BadRequest):
    """The prompt fills the model's context."""


class RequestOverLimit(BadRequest):
    """The request may take more tokens than one of its limits ever lets in at once."""


class BodyTooLarge(Refusal):
    """The body is over the limit; it was not read whole."""


class BodyTooSlow(Refusal):
    """The end of the body didn't come in time."""


class UnsupportedEncoding(Refusal):
    """The body is compressed."""


class Unauthorized(Refusal):
    """No key was sent, or none that is valid here."""


class OriginNotAllowed(Refusal):
    """The call comes from a web page that may not call, or not with this key."""


class CurrencyNotBudgeted(Refusal):
    """The model is priced in another currency than a budget that the request would count in."""


class InsufficientQuota(Refusal):
    """The most that the request can cost doesn't fit into one of its budgets."""


class MissingScope(Refusal):
    """The caller is known, and may not do this."""


class NetworkNotAllowed(Refusal):
    """The key isn't for use from this address."""


class NotFound(Refusal):
    """There is no such route."""


class ModelNotFound(Refusal):
    """The model is unknown, or not for this caller."""


class MethodNotAllowed(Refusal):
    """The route exists, for the method that `allow` names."""

    def __init__(self, message: str, *, allow: str = "", param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.allow = allow


class LimitExceeded(Refusal):
    """A limit of requests, tokens or places is reached; the message names which."""


class Unavailable(Refusal):
    """No engine can answer now."""


class IntegrityAbort(Unavailable):
    """The engine stopped the request because a page of its cache was not its own any more."""


class StoreDown(Unavailable):
    """Keys can't be checked or usage can't be recorded."""


class QueueFull(Unavailable):
    """As many requests as may wait for this model already."""


class ModelFailed(Unavailable):
    """The model's engine has failed too often in a row; it is tried again later."""


class GatewayBusy(Unavailable):
    """There are as many requests in this gateway as it takes at once."""


class LimitsUnavailable(Unavailable):
    """Limits can't be counted, and one of the request's may not be passed meanwhile."""


class Stopping(Unavailable):
    """The server stopped before the answer's end."""


class UpstreamFailed(Refusal):
    """The engine broke, or answered what isn't an answer."""


class UpstreamTimeout(Refusal):
    """The engine was silent for too long."""


class TookTooLong(Refusal):
    """The request has taken as long as any may, its waiting included."""


class Internal(Refusal):
    """A bug of ours."""


@dataclass(frozen=True, slots=True)
class Row:
    """How an error looks in HTTP. `retry_after_s` is sent as Retry-After."""

    status: int
    type: str
    code: str
    retry_after_s: int | None = None


TABLE: dict[type[Refusal], Row] = {
    BadRequest: Row(400, "invalid_request_error", "invalid_value"),
    UnknownField: Row(400, "invalid_request_error", "unknown_parameter"),
    Unsupported: Row(400, "invalid_request_error", "unsupported_parameter"),
    ContextTooLong: Row(400, "invalid_request_error", "context_length_exceeded"),
    RequestOverLimit: Row(400, "invalid_request_error", "request_exceeds_limit"),
    BodyTooLarge: Row(413, "invalid_request_error", "request_too_large"),
    BodyTooSlow: Row(408, "invalid_request_error", "request_too_slow"),
    UnsupportedEncoding: Row(415, "invalid_request_error", "unsupported_encoding"),
    Unauthorized: Row(401, "authentication_error", "invalid_api_key"),
    OriginNotAllowed: Row(403, "permission_error", "origin_not_allowed"),
    CurrencyNotBudgeted: Row(403, "permission_error", "currency_not_budgeted"),
    InsufficientQuota: Row(429, "insufficient_quota", "insufficient_quota"),
    MissingScope: Row(403, "permission_error", "missing_scope"),
    NetworkNotAllowed: Row(403, "permission_error", "network_not_allowed"),
    NotFound: Row(404, "not_found_error", "route_not_found"),
    ModelNotFound: Row(404, "not_found_error", "model_not_found"),
    MethodNotAllowed: Row(405, "invalid_request_error", "method_not_allowed"),
    LimitExceeded: Row(429, "rate_limit_error", "rate_limit_exceeded", 1),
    Unavailable: Row(503, "server_error", "model_unavailable", 2),
    IntegrityAbort: Row(503, "server_error", "kv_integrity_abort", 1),
    StoreDown: Row(503, "server_error", "store_unavailable", 2),
    QueueFull: Row(503, "server_error", "queue_full", 5),
    ModelFailed: Row(503, "server_error", "model_failed", 60),
    GatewayBusy: Row(503, "server_error", "gateway_busy", 1),
    LimitsUnavailable: Row(503, "server_error", "limits_unavailable", 1),
    Stopping: Row(503, "server_error", "server_stopping", 5),
    UpstreamFailed: Row(502, "server_error", "upstream_error"),
    UpstreamTimeout: Row(504, "server_error", "upstream_timeout"),
    TookTooLong: Row(504, "server_error", "request_timeout"),
    Internal: Row(500, "server_error", "internal_error"),
}

# Codes that a refusal may have in place of its row's: more of what is wrong.
MORE_CODES: dict[type[Refusal], tuple[str, ...]] = {
    BadRequest: ("invalid_json", "missing_required_parameter"),
    Unauthorized: ("missing_api_key",),
}
