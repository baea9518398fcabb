"""What the panel says, from what was heard."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from gateway.live.board import Attached, Board, Row
from gateway.live.panel import panel
from runtime.node_wire import Hosts, HostState, HostView, ModelState, ModelView


def host(name: str, model: str = "a", state: HostState = HostState.READY, **more: Any) -> HostView:
    return HostView(id=name, model=model, state=state, rss_bytes=100_000_000, **more)


def model(name: str = "a", state: ModelState = ModelState.READY, **more: Any) -> ModelView:
    return ModelView(id=name, state=state, **more)


def board(hosts: list[HostView], models: list[ModelView], now: float = 0.0) -> Board:
    made = Board()
    made.see(Hosts(version=1, deployment=2, hosts=hosts, models=models), [Attached("far")], now)
    return made


def test_before_the_node_has_told_there_is_nothing() -> None:
    empty = Board()
    assert empty.rows(0, 10) == []
    assert (empty.version, empty.deployment) == (0, 0)


def test_a_model_with_one_host_is_one_line_and_one_by_url_is_named() -> None:
    made = board([host("h1")], [model(hosts=1, max_hosts=2, in_flight=3, waiting=4)])
    assert made.rows(0, 10) == [
        Row("a", "ready", hosts="1/2", running=3, waiting=4, rss_bytes=100_000_000),
        Row("far", "attached"),
    ]
    assert made.deployment == 2


def test_two_hosts_are_shown_beneath_and_their_memory_is_added() -> None:
    made = board(
        [host("h1"), host("h2", state=HostState.DRAINING, reason="idle")], [model(hosts=1)]
    )
    top, one, two, _ = made.rows(0, 10)
    assert top.rss_bytes == 200_000_000
    assert [one.name, two.name, two.state, two.trouble] == ["h1", "h2", "draining", "idle"]
    assert one.is_host


def test_a_single_host_that_drains_is_shown() -> None:
    made = board([host("h1", state=HostState.DRAINING)], [model(state=ModelState.COLD)])
    assert [row.name for row in made.rows(0, 10)] == ["a", "h1", "far"]


def test_a_model_is_idle_since_its_last_request() -> None:
    made = board([host("h1")], [model()], now=10)
    assert made.rows(10.5, 9)[0].idle_s is None
    assert made.rows(15, 9)[0].idle_s == 5
    made.hear({"model": "a", "result": "ok"}, 20)
    assert made.rows(22, 9)[0].idle_s == 2
    made.see(Hosts(version=2, models=[model(in_flight=1)]), [], 30)
    assert made.rows(40, 9)[0].idle_s is None
    made.see(Hosts(version=3, models=[model()]), [], 41)
    assert made.rows(50, 9)[0].idle_s == 20


def test_a_model_without_a_host_is_not_idle() -> None:
    made = board([], [model(state=ModelState.COLD)])
    assert made.rows(99, 9)[0].idle_s is None


def test_trouble_is_told_until_it_is_over() -> None:
    made = board([], [model(state=ModelState.FAILED, reason="exited with -9")])
    assert made.rows(0, 9)[0].trouble == "exited with -9"
    made = board([host("h")], [model(reason="exited with -9")])
    assert made.rows(0, 9)[0].trouble == ""


def test_the_last_trouble_of_an_attached_server_is_told_with_its_age() -> None:
    made = Board()
    one = Attached("one", is_down=True, reason="Connection refused", failed_at=10)
    two = Attached("two", reason="it answers 401", failed_at=100)
    made.see(Hosts(version=1), [one, two], 130)
    assert made.rows(190, 9) == [
        Row("one", "down", trouble="Connection refused (3 min ago)"),
        Row("two", "attached", trouble="it answers 401 (1 min ago)"),
    ]


def test_requests_and_errors_are_counted() -> None:
    made = Board()
    for result in ("ok", "error", "canceled"):
        made.hear({"result": result}, 0)
    assert (made.num_requests, made.num_errors) == (3, 1)


def test_what_does_not_fit_is_left_out_hosts_first() -> None:
    hosts = [host(f"h{n}", f"m{n % 3}") for n in range(6)]
    made = board(hosts, [model(f"m{n}") for n in range(3)])
    assert len(made.rows(0, 10)) == 10
    assert [row.name for row in made.rows(0, 9)] == ["m0", "m1", "m2", "far"]
    assert [row.name for row in made.rows(0, 3)] == ["m0", "m1", "and 2 more"]
    assert [row.name for row in made.rows(0, 1)] == ["and 4 more"]


def drawn(rows: list[Row], width: int, title: list[str]) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(panel(title, rows, width))
    return captured.get().splitlines()


def test_the_panel_fits_its_width_and_keeps_its_columns() -> None:
    rows = [
        Row("m" * 60, "waiting for memory", hosts="10/10", running=123, waiting=5000)
        if n % 2
        else Row("echo", "ready", hosts="1/1", running=0, waiting=0, idle_s=9)
        for n in range(4)
    ]
    title = ["bulkhead dev", "http://127.0.0.1:8787", "deployment 3", "up 1 min", "5 requests"]
    for width in (60, 80, 120):
        lines = drawn(rows, width, title)
        assert len(lines) == 2 + len(rows)
        assert max(len(line) for line in lines) <= width
        assert lines[0].startswith("bulkhead dev")
        ends = {lines[1].index("HOSTS") + len("HOSTS")}
        assert ends == {line.index("/1") + 2 for line in lines if "1/1" in line}
    assert "5 requests" in drawn(rows, 120, title)[0]
    assert "5 requests" not in drawn(rows, 60, title)[0]


def test_trouble_has_a_line_of_its_own() -> None:
    lines = drawn([Row("a", "failed", trouble="exited\nwith -9 " + "x" * 200)], 80, ["t"])
    assert lines[3].startswith("  exited with -9 xxx")
    assert lines[3].endswith("…")
