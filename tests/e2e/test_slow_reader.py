"""A client over HTTP/2 that takes in nothing of its answer, and everything else that it is sent."""

from __future__ import annotations

from pathlib import Path

from tests.authority import Authority
from tests.e2e.clients import BODY, DONE, LONG
from tests.e2e.http2 import Http2
from tests.e2e.ledger import records
from tests.e2e.test_tls import SERVER
from tests.stack import fake_config, running
from tests.waiting import wait_for

WALL_S = 10
WINDOW = 65535  # of a stream, until its client opens it further
GROWTH_KB = 32 * 1024  # of worker or host
CONFIG = f"[limits]\nwall_s = {WALL_S}\n" + fake_config(more=SERVER)


def resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def test_a_stream_that_is_not_read_is_ended_and_takes_nothing_from_others(tmp_path: Path) -> None:
    """`limits.wall_s` bounds it; till then its tokens, at most a context, wait in the host.

    What was handed over is billed: who reads slowly enough would else have it for nothing.
    """
    authority = Authority(tmp_path)
    authority.issue()
    with running(tmp_path, CONFIG, tls=authority.context()) as stack:
        client, worker = Http2(stack, authority.context()), stack.worker_pid()
        unread = client.post(LONG | {"max_tokens": 2_000_000})
        client.unread.add(unread)
        client.read_until(unread, b"data: ")
        pids = (worker, stack.host_pid())
        before = [resident_kb(pid) for pid in pids]
        while not (ended := [r for r in records(stack) if r["outcome"] == "client_cancelled"]):
            beside = client.post(BODY | {"stream": True})
            client.read_until(beside, DONE)
        assert len(client.data) > 2, "others were answered meanwhile, on its connection"
        grown = [resident_kb(pid) - kb for pid, kb in zip(pids, before, strict=True)]
        assert max(grown) < GROWTH_KB, grown
        assert [row["request_id"] for row in ended] == [client.headers[unread]["x-request-id"]]
        assert (ended[0]["bill_reason"], ended[0]["billable"]) == ("delivered_part", 1)
        assert ended[0]["output_tokens"] > 0
        assert len(client.data[unread]) <= WINDOW
        wait_for(lambda: stack.host_stats()["running"] == 0)
        client.close()
