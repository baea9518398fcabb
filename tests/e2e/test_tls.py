"""HTTPS: curl over HTTP/2, the SDK with a private authority, client certificates, refusals."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.authority import DAY, Authority
from tests.e2e.http2 import Http2, connect
from tests.e2e.ledger import exported, row_of
from tests.stack import BULKHEAD, REPO, Stack, fake_config, free_port, running
from tests.waiting import wait_for

SERVER = '[server.tls]\ncert = "server.pem"\nkey = "server.key"\n'
BODY = {"model": "echo", "prompt": "abcdefgh", "max_tokens": 8}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    authority.issue()
    return authority


@pytest.fixture(scope="module")
def stack(authority: Authority) -> Iterator[Stack]:
    """Its certificate is named relative to the config file."""
    config = fake_config(step_s=0.005, more=SERVER)
    with running(authority.folder, config, tls=authority.context()) as stack:
        yield stack


def curl(
    stack: Stack, *options: str, path: str = "/v1/completions"
) -> subprocess.CompletedProcess[str]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    return subprocess.run(
        ["curl", "-sS", *options, "-w", "\n%{http_version} %{http_code}", f"{stack.url}{path}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def asking(stack: Stack) -> list[str]:
    headers = (f"authorization: Bearer {stack.key}", "content-type: application/json")
    return [*(x for header in headers for x in ("-H", header)), "-d", json.dumps(BODY)]


@pytest.mark.parametrize(("option", "version"), [("--http2", "2"), ("--http1.1", "1.1")])
@pytest.mark.parametrize("tls", ["1.2", "1.3"])
def test_curl_is_answered(
    stack: Stack, authority: Authority, option: str, version: str, tls: str
) -> None:
    """ALPN chooses HTTP/2 for who offers it."""
    done = curl(
        stack, option, "--cacert", str(authority.path), f"--tlsv{tls}", "--tls-max", tls,
        *asking(stack),
    )  # fmt: skip
    body, _, told = done.stdout.rpartition("\n")
    assert (told, done.stderr) == (f"{version} 200", "")
    assert json.loads(body)["choices"][0]["text"] == "abcdefgh"


def test_curl_streams_over_http2(stack: Stack, authority: Authority) -> None:
    body = json.dumps(BODY | {"stream": True})
    options = [*asking(stack)[:-1], body]
    done = curl(stack, "--http2", "--no-buffer", "--cacert", str(authority.path), *options)
    assert done.stdout.endswith("data: [DONE]\n\n\n2 200")


def test_a_client_that_does_not_know_the_authority_refuses_us(stack: Stack) -> None:
    assert "SSL certificate problem" in curl(stack, path="/healthz").stderr
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0) as sdk:
        with pytest.raises(openai.APIConnectionError) as caught:
            sdk.models.list()
        assert "certificate verify failed" in str(caught.value.__cause__)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_tls_is_refused(stack: Stack, authority: Authority, version: ssl.TLSVersion) -> None:
    context = authority.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with pytest.raises(ssl.SSLError) as caught:
        connect(stack, context)
    assert "ALERT" in caught.value.reason, "the server refuses, and not our side"


def test_plain_http_is_no_request(stack: Stack) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{stack.port}/healthz")


def test_the_sdk_works(stack: Stack, authority: Authority) -> None:
    http = openai.DefaultHttpxClient(verify=authority.context())
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, http_client=http) as sdk:
        answer = sdk.completions.create(model="echo", prompt="abcdefgh", max_tokens=8)
        assert answer.choices[0].text == "abcdefgh"
        chunks = sdk.completions.create(model="echo", prompt="abc", max_tokens=6, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "abcabc"


def test_leaving_one_stream_of_many_ends_its_work_and_no_other(
    stack: Stack, authority: Authority
) -> None:
    """RST_STREAM reaches the engine within a second; the connection and its other stream go on."""
    client = Http2(stack, authority.context())
    left = client.post(BODY | {"max_tokens": 3000, "stream": True})
    kept = client.post(BODY | {"max_tokens": 300, "stream": True})
    client.read_until(left, b"data: ")
    aborted = stack.host_stats()["aborted"]
    client.reset(left)
    wait_for(lambda: stack.host_stats()["aborted"] == aborted + 1)
    client.read_until(kept, b"[DONE]")
    client.close()
    wait_for(
        lambda: any(
            r["request_id"] == client.headers[left]["x-request-id"] for r in exported(stack)
        )
    )
    assert row_of(stack, client.headers[left]["x-request-id"])["outcome"] == "client_cancelled"
    assert row_of(stack, client.headers[kept]["x-request-id"])["outcome"] == "length"


@pytest.fixture(scope="module")
def mutual_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Authority]]:
    """Callers must show a certificate; and TLS 1.3 alone is spoken."""
    authority = Authority(tmp_path_factory.mktemp("mutual"))
    authority.issue()
    authority.client()
    more = SERVER + 'client_ca = "ca.pem"\nmin_version = "1.3"\n'
    context = authority.context("client")
    with running(authority.folder, fake_config(more=more), tls=context) as stack:
        yield stack, authority


def test_client_certificates_are_asked_for(
    mutual_stack: tuple[Stack, Authority], authority: Authority
) -> None:
    """With one of the authority's, yes; with none, or another authority's, no."""
    stack, own = mutual_stack
    with stack.client() as client:
        assert client.post("/v1/completions", json=BODY).status_code == 200
    stranger = own.context()
    authority.client("stranger")
    stranger.load_cert_chain(authority.folder / "stranger.pem", authority.folder / "stranger.key")
    for context in (own.context(), stranger):
        with pytest.raises(httpx.HTTPError, match=r"alert|closed|reset|disconnected"):
            httpx.get(f"{stack.url}/healthz", verify=context)
    context = own.context("client")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError) as caught:
        connect(stack, context)
    assert "ALERT" in caught.value.reason, "the server refuses, and not our side"


def test_another_authority_for_clients_is_taken_while_requests_run(tmp_path: Path) -> None:
    """Its clients come in, those of the one before don't, and a running answer isn't cut."""
    authority = Authority(tmp_path)
    authority.issue()
    authority.client()
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "another authority")
    other.client()
    context, stranger = authority.context("client"), authority.context()
    stranger.load_cert_chain(other.folder / "client.pem", other.folder / "client.key")
    more = SERVER + 'client_ca = "clients.pem"\n'
    (tmp_path / "clients.pem").write_bytes((tmp_path / "ca.pem").read_bytes())

    with running(tmp_path, fake_config(step_s=0.02, more=more), tls=context) as own:
        assert (comes_in(own, context), comes_in(own, stranger)) == (True, False)
        body = BODY | {"stream": True, "max_tokens": 200}
        with own.client() as client, client.stream("POST", "/v1/completions", json=body) as told:
            lines = told.iter_lines()
            next(lines)
            new = tmp_path / "clients.pem.new"
            new.write_bytes((other.folder / "ca.pem").read_bytes())
            new.rename(tmp_path / "clients.pem")
            wait_for(lambda: comes_in(own, stranger), 60)
            assert "data: [DONE]" in list(lines)
        wait_for(lambda: not comes_in(own, context), 60)


def comes_in(stack: Stack, who: ssl.SSLContext) -> bool:
    try:
        return httpx.get(f"{stack.url}/healthz", verify=who).status_code == 200
    except httpx.HTTPError:
        return False


def test_an_expired_certificate_is_refused_at_the_start(tmp_path: Path) -> None:
    """With its path, before anything starts."""
    Authority(tmp_path).issue(until=-DAY / 2)
    (tmp_path / "bulkhead.toml").write_text(fake_config(more=SERVER))
    for command in ("dev", "serve"):
        done = subprocess.run(
            [*BULKHEAD, command, "--config", str(tmp_path / "bulkhead.toml"),
             "--state", str(tmp_path / "state"), "--port", str(free_port())],
            capture_output=True, text=True, cwd=REPO, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        assert f"{tmp_path}/server.pem expired on" in done.stderr
        assert "gateway_started" not in done.stderr


def test_dev_makes_a_certificate_for_this_machine(tmp_path: Path) -> None:
    """`--https` prints its authority, which stays the same on the next start."""
    folder = tmp_path / "state" / "tls"
    for _ in range(2):
        with running(tmp_path, fake_config(), options=("--https",), tls=folder / "ca.pem") as stack:
            assert f"BULKHEAD_CA={folder}/ca.pem" in stack.lines
            assert f"BULKHEAD_URL=https://127.0.0.1:{stack.port}" in stack.lines
            for host in ("localhost", "127.0.0.1", socket.gethostname()):
                url = f"https://{host}:{stack.port}/healthz"
                options = [
                    "--resolve",
                    f"{host}:{stack.port}:127.0.0.1",
                    "--cacert",
                    f"{folder}/ca.pem",
                ]
                done = subprocess.run(
                    ["curl", "-sS", *options, url], capture_output=True, timeout=60
                )
                assert done.stdout == b'{"status":"ok"}', done.stderr
            mine = {"BULKHEAD_URL": f"{stack.url}/v1", "BULKHEAD_API_KEY": stack.key}
            command = [*BULKHEAD, "whoami", "--json"]
            for ca, code in ((f"{folder}/ca.pem", 0), ("", 5), ("/nowhere", 5)):
                told = subprocess.run(
                    command, env=os.environ | mine | {"BULKHEAD_CA": ca}, cwd=REPO,
                    capture_output=True, text=True,
                )  # fmt: skip
                assert told.returncode == code, told.stderr
                assert code == 0 or "BULKHEAD_CA" in told.stderr
        authority = (folder / "ca.pem").read_bytes()
    assert (folder / "ca.pem").read_bytes() == authority
