"""How commands call a running Bulkhead: where it is, with which key, and what its answers mean."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway import address
from gateway.address import Address
from gateway.admin import key as admin_key
from gateway.cli.options import Declined, Places, Refused, Unreachable, locate
from runtime import settings as config
from runtime.config.place import Caller

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """A base URL, and the key that opens it."""

    url: str
    key: str = field(repr=False)
    tls: ssl.SSLContext | bool = True

    def client(self, timeout_s: float = TIMEOUT_S) -> httpx.Client:
        """For calls of our own."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout_s, verify=self.tls, trust_env=False
        )

    def ask(self, method: str, path: str, **query: str | int) -> dict[str, Any]:
        """The JSON of an answer. Raises Unreachable, Refused or Declined."""
        try:
            with self.client() as http:
                answer = http.request(method, path, params=query)
                check(answer, self.url)
                found = answer.json()
        except httpx.HTTPError as fault:
            raise unreachable(self.url, fault) from None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Declined(f"{self.url} answers, but not as Bulkhead does")
        return found


def admin_server(places: Places) -> Server:
    """The admin API: of BULKHEAD_ADMIN_URL, else of the state folder. Raises Unreachable."""
    given, state_dir = config.caller(), locate(places).state_dir
    if given.admin_url:
        key = admin_key.read(state_dir, given.admin_key)
        return Server(given.admin_url, key, authority(given))
    found = address.find(state_dir, "admin") if state_dir.exists() else None
    if found is None:
        raise Unreachable(
            f"no admin API is open for {state_dir}; start `bulkhead dev` or `serve` (with an admin "
            "port), or name another with --state or BULKHEAD_ADMIN_URL"
        )
    return Server(found.url, admin_key.read(state_dir, given.admin_key), trust(found))


def trust(found: Address) -> ssl.SSLContext | bool:
    """Whom to believe there."""
    if found.certificate:
        return only(found.certificate)
    return ssl.create_default_context(cafile=found.authority) if found.authority else True


def authority(given: Caller) -> ssl.SSLContext | bool:
    """Whom to believe at a URL that the environment names. Raises Unreachable."""
    try:
        return ssl.create_default_context(cafile=given.ca) if given.ca else True
    except OSError as fault:
        raise Unreachable(f"BULKHEAD_CA: {given.ca}: {fault.strerror or fault}") from None


def only(certificate: str) -> ssl.SSLContext:
    """Believes this one certificate, by whatever name: it is our own listener's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def check(answer: httpx.Response, url: str) -> None:
    """Raises Refused or Declined unless the answer is a success."""
    if answer.status_code in (401, 403):
        raise Refused(f"{url} refuses the key: {reason(answer)}")
    if answer.status_code >= 400:
        raise Declined(f"{url} answers {answer.status_code}: {reason(answer)}")


def reason(answer: httpx.Response) -> str:
    """An error's own words: a problem's detail, or the message of an error object."""
    try:
        body = answer.json()
    except ValueError:
        return answer.reason_phrase
    if not isinstance(body, dict):
        return answer.reason_phrase
    error = body.get("error")
    told = error.get("message") if isinstance(error, dict) else body.get("detail")
    return str(told or answer.reason_phrase)


def unreachable(url: str, fault: httpx.HTTPError) -> Unreachable:
    """What to say when nothing, or no HTTP, comes back."""
    why = str(fault) or type(fault).__name__
    if "CERTIFICATE_VERIFY_FAILED" in why:
        why += "; BULKHEAD_CA names the file of an authority to believe"
    return Unreachable(f"{url} can't be reached ({why})")
