"""Who may call a real Bulkhead: keys made, rotated, ended by command, and tokens of two kinds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.e2e.ledger import records
from tests.gateway.identity.provider import Provider, provider
from tests.gateway.identity.signing import (
    OTHER_RSA,
    PUBLIC_PEM,
    RSA_KEY,
    document,
    hmac_token,
    jwk,
    spelled,
    token,
)
from tests.stack import Stack, fake_config, running
from tests.waiting import wait_for

LONG = 8_000  # tokens: most of their frames are read after the key has ended
ASK = {"model": "echo", "messages": [{"role": "user", "content": "canary-prompt"}]}
MORE = """
[server]
trusted_proxies = ["10.0.0.0/8"]

[[tenants]]
name = "acme"
origins = ["https://app.example"]

[[issuers]]
issuer = "{url}"
audiences = ["bulkhead"]
algorithms = ["RS256"]
tenant_claim = "org"
tenants = {{ org-1 = "acme" }}
refresh_s = 1
tls = {{ ca = "{ca}" }}
"""


@dataclass
class Served:
    """A `bulkhead serve`, its identity provider, and the secrets that nobody may find later."""

    stack: Stack
    idp: Provider
    secrets: list[str]

    def key(self, *options: str) -> tuple[str, str]:
        """The id of a new key of acme's, and its secret."""
        made = json.loads(self.stack.cli("keys", "create", "acme", "--json", *options))
        self.secrets.append(made["secret"])
        return made["id"], made["secret"]

    def ask(self, bearer: str, **headers: str) -> httpx.Response:
        sent = {"authorization": f"Bearer {bearer}"} | headers
        with httpx.Client(base_url=self.stack.url, timeout=60) as http:
            return http.post("/v1/chat/completions", json=ASK, headers=sent)

    def whoami(self, bearer: str) -> int:
        sent = {"authorization": f"Bearer {bearer}"}
        return httpx.get(f"{self.stack.url}/v1/whoami", headers=sent, timeout=60).status_code

    def mint(self, bearer: str, **body: Any) -> str:
        sent = {"authorization": f"Bearer {bearer}"}
        url = f"{self.stack.url}/v1/tokens"
        minted: str = httpx.post(url, json=body, headers=sent, timeout=60).json()["token"]
        self.secrets.append(minted)
        return minted

    def foreign(self, key: Any = RSA_KEY, **changed: Any) -> str:
        now = int(time.time())
        said = {"iss": self.idp.url, "aud": "bulkhead", "sub": "u1", "org": "org-1"}
        kid = "one" if key is RSA_KEY else "two"
        found = token(said | {"iat": now, "exp": now + 600} | changed, key, headers={"kid": kid})
        self.secrets.append(found)
        return found

    def listed(self, key_id: str) -> dict[str, Any]:
        found = json.loads(self.stack.cli("keys", "list", "acme", "--json"))
        one: dict[str, Any] = next(key for key in found if key["id"] == key_id)
        return one


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("identity")
    with provider(folder) as idp:
        idp.publish(document(jwk(RSA_KEY)))
        more = MORE.format(url=idp.url, ca=idp.ca)
        with running(folder, fake_config(more=more), "serve") as stack:
            stack.cli("tenants", "create", "acme")
            yield Served(stack, idp, [])


def test_a_key_made_just_now_works_and_a_revoked_one_is_refused(served: Served) -> None:
    key_id, secret = served.key("--scope", "inference")
    assert served.ask(secret).status_code == 200
    served.stack.cli("keys", "revoke", key_id)
    wait_for(lambda: served.ask(secret).status_code == 401)


def test_a_key_that_is_revoked_mid_stream_pays_for_all_of_it(served: Served) -> None:
    """What it was admitted for goes on, within `limits.wall_s`, and is billed once, as it ends."""
    key_id, secret = served.key("--scope", "inference")
    sent = {"authorization": f"Bearer {secret}"}
    body = ASK | {"stream": True, "max_tokens": LONG, "stream_options": {"include_usage": True}}
    url = f"{served.stack.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=sent, timeout=60) as answer:
        assert answer.status_code == 200
        request_id = answer.headers["x-request-id"]
        lines = answer.iter_lines()
        next(lines)  # not read on until the key is refused
        served.stack.cli("keys", "revoke", key_id)
        wait_for(lambda: served.ask(secret).status_code == 401)
        told = [line for line in lines if line.startswith("data: ")]
    assert told[-1] == "data: [DONE]"
    (row,) = rows_of(served, request_id)
    assert (row["outcome"], row["billable"], row["output_tokens"]) == ("length", 1, LONG)
    assert json.loads(told[-2][6:])["usage"]["completion_tokens"] == LONG


def rows_of(served: Served, request_id: str) -> list[dict[str, Any]]:
    return [row for row in records(served.stack) if row["request_id"] == request_id]


def test_a_key_is_rotated_with_grace_and_then_without(served: Served) -> None:
    key_id, first = served.key()
    rotated = json.loads(served.stack.cli("keys", "rotate", key_id, "--grace", "1h", "--json"))
    assert served.ask(first).status_code == served.ask(rotated["secret"]).status_code == 200
    again = json.loads(served.stack.cli("keys", "rotate", key_id, "--grace", "0", "--json"))
    served.secrets += [rotated["secret"], again["secret"]]
    wait_for(lambda: served.whoami(first) == served.whoami(rotated["secret"]) == 401)
    assert served.ask(again["secret"]).status_code == 200


def test_a_key_ends_when_it_was_said(served: Served) -> None:
    _, secret = served.key("--expires", "2s")
    wait_for(lambda: served.ask(secret).status_code == 401)


def test_a_key_is_for_its_networks_and_no_header_helps(served: Served) -> None:
    _, here = served.key("--network", "127.0.0.0/8")
    assert served.ask(here).status_code == 200
    _, away = served.key("--network", "203.0.113.0/24", "--network", "10.0.0.0/8")
    for forwarded in ("203.0.113.7", "10.0.0.1", "203.0.113.7, 10.0.0.1"):
        answer = served.ask(away, **{"x-forwarded-for": forwarded})
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "network_not_allowed"
        assert "127.0.0.1" in answer.json()["error"]["message"]


def test_a_tenant_is_disabled_with_all_its_callers_and_enabled_again(served: Served) -> None:
    _, secret = served.key("--scope", "keys:write", "--scope", "inference")
    callers = [secret, served.mint(secret), served.foreign()]
    for caller in callers:
        assert served.ask(caller).status_code == 200
    served.stack.cli("tenants", "disable", "acme")
    wait_for(lambda: {served.whoami(caller) for caller in callers} == {401})
    served.stack.cli("tenants", "enable", "acme")
    wait_for(lambda: {served.whoami(caller) for caller in callers} == {200})


def test_when_a_key_was_used_is_told(served: Served) -> None:
    key_id, secret = served.key()
    assert served.listed(key_id)["last_used_at"] is None
    served.ask(secret)
    wait_for(lambda: served.listed(key_id)["last_used_at"])
    assert served.listed(key_id)["last_used_from"] == "127.0.0.1"


def test_a_minted_token_ends_with_its_key(served: Served) -> None:
    key_id, secret = served.key("--scope", "keys:write", "--scope", "inference")
    minted = served.mint(secret, ttl=600, origin="https://app.example")
    assert served.ask(minted, origin="https://app.example").status_code == 200
    assert served.ask(minted, origin="https://evil.example").status_code == 403
    served.stack.cli("keys", "revoke", key_id)
    wait_for(lambda: served.ask(minted, origin="https://app.example").status_code == 401)


def test_an_issuer_s_token_is_believed_as_long_as_its_key_is_published(served: Served) -> None:
    assert served.ask(served.foreign()).status_code == 200
    served.idp.publish(document(jwk(OTHER_RSA, "two")))
    wait_for(lambda: served.ask(served.foreign()).status_code == 401)
    wait_for(lambda: served.ask(served.foreign(OTHER_RSA)).status_code == 200)
    served.idp.publish(document(jwk(RSA_KEY)))
    wait_for(lambda: served.ask(served.foreign()).status_code == 200)
    rows = served.stack.cli("usage", "export").splitlines()
    assert any(f"{served.idp.url}|u1" in row for row in rows)


def test_an_issuer_that_is_silent_is_believed_for_a_while(served: Served) -> None:
    assert served.ask(served.foreign()).status_code == 200
    served.idp.answers.clear()
    time.sleep(1.2)  # its keys are older than refresh_s
    try:
        assert served.ask(served.foreign(sub="u2")).status_code == 200
    finally:
        served.idp.publish(document(jwk(RSA_KEY)))


def test_whatever_is_wrong_with_a_bearer_the_answer_is_one_and_the_same(served: Served) -> None:
    _, secret = served.key()
    now = int(time.time())
    said: dict[str, Any] = {"iss": served.idp.url, "aud": "bulkhead", "sub": "u1"}
    said |= {"org": "org-1", "iat": now, "exp": now + 600}
    bad = [
        "' OR 1=1--",
        secret[:-1],
        secret.swapcase(),
        "bh_tok_" + "A" * 100,
        spelled({"alg": "none"}, said),
        hmac_token(PUBLIC_PEM, said=said),
        served.foreign(OTHER_RSA),
        served.foreign(exp=str(now + 600)),
        served.foreign(exp=1e308),
        served.foreign(exp=now - 60, iat=now - 600),
        served.foreign(iss=served.idp.url + ".evil.example", aud=["x", "bulkhead"]),
        served.foreign(org="org-2"),
        "x" * 16_000,
    ]
    answers = [served.ask(bearer) for bearer in bad]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1


def test_no_secret_is_written_anywhere(served: Served) -> None:
    """The last test of this file: whatever the others used is looked for."""
    _, secret = served.key("--scope", "keys:write", "--scope", "inference")
    served.ask(served.mint(secret))
    served.ask(served.foreign())
    folder = served.stack.state.parent
    texts = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for text in served.secrets:
        looked_for = text.rpartition(".")[2][-24:].encode()  # a signature, a MAC, a key's end
        found = [str(path) for path, content in texts.items() if looked_for in content]
        assert found == [], found
    assert b"canary-prompt" not in b"".join(texts.values())
