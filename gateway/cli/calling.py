"""How commands call a running Bulkhead: where it is, with which key, and what its answers mean."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx
import msgspec

from gateway import address
from gateway.admin import key as admin_key
from gateway.cli import proof
from gateway.cli.options import Declined, Places, Refused, Stranger, Unreachable, locate
from gateway.live.words import clean
from runtime import settings as config

TIMEOUT_S = 10.0
PROBLEM = "application/problem+json"

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """An answer as far as we know it, and the whole of it."""

    told: T
    document: Any


@dataclass(frozen=True, slots=True)
class Server:
    """A base URL, and the key that opens it."""

    url: str
    key: str = field(repr=False)
    tls: ssl.SSLContext | bool = True

    def client(self, timeout_s: float = TIMEOUT_S) -> httpx.Client:
        """For calls of our own. Raises Unreachable if it is no URL, Refused if it is no key."""
        if not (self.key.isascii() and self.key.isprintable()):
            raise Refused("the key holds characters that no key has")
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            return httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=timeout_s,
                verify=self.tls,
                trust_env=False,
            )
        except httpx.InvalidURL as fault:
            raise Unreachable(f"{self.url} is no URL ({fault})") from None

    def ask(self, method: str, path: str, kind: type[T], **query: str | int) -> Answer[T]:
        """What is answered. Raises Unreachable, Stranger, Refused or Declined."""
        answer = self._answer(method, path, **query)
        document = decoded(answer.content)
        try:
            return Answer(msgspec.convert(document, kind), document)
        except msgspec.ValidationError:
            raise stranger(self.url) from None

    def read(self, path: str) -> str:
        """A text. Raises Unreachable, Refused or Declined."""
        return self._answer("GET", path).text

    def _answer(self, method: str, path: str, **query: str | int) -> httpx.Response:
        try:
            with self.client() as http:
                answer = http.request(method, path, params=query)
        except httpx.HTTPError as fault:
            raise unreachable(self.url, fault) from None
        check(answer, self.url)
        return answer


def admin_server(places: Places) -> Server:
    """The admin API: of BULKHEAD_ADMIN_URL, else of the state folder. Raises Unreachable."""
    given, state_dir = config.caller(), locate(places).state_dir
    if given.admin_url:
        key = admin_key.read(state_dir, given.admin_key)
        return Server(given.admin_url, key, proof.outside(given))
    found = address.find(state_dir, "admin") if state_dir.exists() else None
    if found is None:
        raise Unreachable(
            f"no admin API is open for {state_dir}; start `bulkhead dev` or `serve` (with an admin "
            "port), or name another with --state or BULKHEAD_ADMIN_URL"
        )
    key = admin_key.read(state_dir, given.admin_key)
    return Server(found.url, key, proof.towards(found, given))


def check(answer: httpx.Response, url: str) -> None:
    """Raises Refused or Declined unless the answer is a success."""
    is_problem = answer.headers.get("content-type", "") == PROBLEM  # of ours: a 403 is no key's
    if answer.status_code == 401 or (answer.status_code == 403 and not is_problem):
        raise Refused(f"{url} refuses the key: {reason(answer)}")
    if answer.status_code >= 400 and is_problem:
        raise Declined(reason(answer))  # a whole sentence, with what to do
    if answer.status_code >= 400:
        raise Declined(f"{url} answers {answer.status_code}: {reason(answer)}")


def reason(answer: httpx.Response) -> str:
    """An error's own words: a problem's detail, or the message of an error object."""
    body = decoded(answer.content)
    if not isinstance(body, dict):
        return answer.reason_phrase
    error = body.get("error")
    told = error.get("message") if isinstance(error, dict) else body.get("detail")
    return clean(str(told or answer.reason_phrase))


def decoded(content: bytes | str) -> Any:
    """A JSON document, or None for what is none."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def stranger(url: str) -> Stranger:
    """What to say of an answer that makes no sense."""
    return Stranger(f"what answers at {url} isn't a Bulkhead, or one of another version")


def unreachable(url: str, fault: httpx.HTTPError) -> Unreachable:
    """What to say when nothing, or no HTTP, comes back."""
    why = str(fault) or type(fault).__name__
    told = proof.hint(url, fault)
    return Unreachable(f"{url} can't be reached ({why}{'; ' if told else ''}{told})")
