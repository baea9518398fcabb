"""Alerts are sent until somebody has accepted them, and hold up nobody."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import pytest

from gateway.budgets.outbox import CLAIM_S, claim, due
from gateway.budgets.sender import AlertSender
from gateway.budgets.webhook import GIVE_UP_S, Hook, key_of, retry_us
from gateway.door import Door
from gateway.ledger import Ledger
from gateway.store.address import Database
from gateway.store.connection import open_for_writing, transaction
from gateway.store.writer import Writer
from tests.gateway.budgets.receiver import Do, Receiver, cut, receiving, status
from tests.gateway.budgets.spending import make, raised, spend
from tests.gateway.records import FakeClock

SECRET = "whsec_" + base64.b64encode(b"a secret of the operator").decode()
US = 1_000_000


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def hook(receiver: Receiver) -> Hook:
    return Hook(f"http://127.0.0.1:{receiver.port}/hooks/t0ken", SECRET, "here")


@pytest.fixture
async def sender(path: Database, writer: Writer, clock: FakeClock) -> AsyncIterator[AlertSender]:
    sender = AlertSender(path, writer, Door(0), clock, deadline_s=0.5)
    yield sender
    await sender.aclose()


@pytest.fixture
async def alert(ledger: Ledger, path: Database) -> str:
    """One that is due; its budget's id."""
    account = make(path, limit_nano=2000, alerts=(50,))
    await spend(ledger, 1000)
    return account.budget.id


async def test_what_is_sent_is_signed_and_says_what_was_spent(
    sender: AlertSender,
    receiver: Receiver,
    hook: Hook,
    alert: str,
    path: Database,
    clock: FakeClock,
) -> None:
    await sender.look(hook)
    (got,) = receiver.got
    assert got.path == "/hooks/t0ken"
    message: dict[str, Any] = json.loads(got.body)
    assert message["type"] == "budget.alert"
    assert message["source"] == "here"
    assert message["id"] == got.headers["webhook-id"] == f"{alert}-0-50"
    data = message["data"]
    assert data["percent"] == 50
    assert data["tenant"] == {"id": "tn_1", "name": "acme"}
    assert data["budget"]["window"]["spent"] == "0.000001"
    stamp = got.headers["webhook-timestamp"]
    signed = f"{got.headers['webhook-id']}.{stamp}.".encode() + got.body
    mac = hmac.new(b"a secret of the operator", signed, hashlib.sha256).digest()
    assert got.headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()
    assert raised(path) == [(50, clock.us, 1)]
    await sender.look(hook)
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    "fails",
    [
        status(500),
        status(404),
        status(302, location="/elsewhere"),
        status(308, location="/elsewhere"),
        cut,
        "hang",
        "drip",
    ],
    ids=["500", "404", "302", "308", "cut", "hang", "drip"],
)
async def test_what_is_not_accepted_is_sent_again_later_under_the_same_id(
    sender: AlertSender,
    receiver: Receiver,
    hook: Hook,
    alert: str,
    path: Database,
    clock: FakeClock,
    fails: Do | str,
) -> None:
    do: Do = getattr(receiver, fails) if isinstance(fails, str) else fails
    receiver.script = [do, do]
    for attempts in (1, 2):
        await sender.look(hook)
        await sender.look(hook)  # it isn't due again yet
        assert raised(path) == [(50, None, attempts)]
        clock.us += retry_us(attempts)
    await sender.look(hook)
    assert [percent for percent, sent_at, _ in raised(path) if sent_at] == [50]
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
    assert {got.path for got in receiver.got} == {"/hooks/t0ken"}, "no redirect is followed"
    assert len(receiver.got) == 3


async def test_a_receiver_that_is_away_gets_it_when_it_is_back(
    sender: AlertSender, alert: str, path: Database, clock: FakeClock
) -> None:
    with receiving() as first:
        port = first.port
    hook = Hook(f"http://127.0.0.1:{port}/", SECRET, "here")
    await sender.look(hook)
    assert raised(path) == [(50, None, 1)]
    clock.us += retry_us(1)
    with receiving(port) as second:
        await sender.look(hook)
        assert len(second.got) == 1
    assert raised(path) == [(50, clock.us, 2)]


async def test_two_processes_send_it_once(
    path: Database, writer: Writer, clock: FakeClock, receiver: Receiver, hook: Hook, alert: str
) -> None:
    senders = [AlertSender(path, writer, Door(0), clock) for _ in range(4)]
    await asyncio.gather(*(sender.look(hook) for sender in senders))
    assert len(receiver.got) == 1
    for sender in senders:
        await sender.aclose()


async def test_what_a_killed_process_had_claimed_is_sent_by_another(
    sender: AlertSender,
    receiver: Receiver,
    hook: Hook,
    alert: str,
    path: Database,
    clock: FakeClock,
) -> None:
    with closing(open_for_writing(path)) as db, transaction(db):
        (waiting,) = due(db, clock.us)
        assert claim(db, waiting, clock.us) is not None
        assert claim(db, waiting, clock.us) is None, "it has been"
    await sender.look(hook)
    assert receiver.got == []
    clock.us += CLAIM_S * US
    await sender.look(hook)
    assert len(receiver.got) == 1


async def test_after_a_day_it_is_given_up(
    sender: AlertSender,
    receiver: Receiver,
    hook: Hook,
    alert: str,
    path: Database,
    clock: FakeClock,
) -> None:
    clock.us += GIVE_UP_S * US
    await sender.look(hook)
    assert receiver.got == []
    assert raised(path) == [(50, None, 0)]


async def test_without_a_hook_they_stay(sender: AlertSender, alert: str, path: Database) -> None:
    await sender.look(None)
    assert raised(path) == [(50, None, 0)]


async def test_a_hook_that_hangs_holds_up_no_request(
    sender: AlertSender, receiver: Receiver, hook: Hook, alert: str, ledger: Ledger
) -> None:
    receiver.script = [receiver.hang]
    looking = asyncio.ensure_future(sender.look(hook))
    while not receiver.got:
        await asyncio.sleep(0.01)
    await spend(ledger, 1)
    assert not looking.done()
    await looking


async def test_no_log_line_holds_the_url_or_the_secret(
    sender: AlertSender,
    receiver: Receiver,
    hook: Hook,
    alert: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    receiver.script = [status(500)]
    await sender.look(hook)
    told = "".join(capfd.readouterr())
    assert "alert_not_sent" in told
    assert "t0ken" not in told
    assert SECRET not in told
    assert "t0ken" not in repr(hook)
    assert SECRET not in repr(hook)


def test_pauses_double_up_to_ten_minutes() -> None:
    seconds = [retry_us(attempts) // US for attempts in (1, 2, 3, 9, 10, 1000)]
    assert seconds == [2, 4, 8, 512, 600, 600]


@pytest.mark.parametrize(
    ("secret", "key"), [("plain", b"plain"), ("whsec_aGk=", b"hi"), ("whsec_!", b"whsec_!")]
)
def test_secrets_may_be_written_as_libraries_write_them(secret: str, key: bytes) -> None:
    assert key_of(secret) == key
