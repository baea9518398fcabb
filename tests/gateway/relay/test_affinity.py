"""A session's requests go to one place, unless that has far more to do than another."""

from __future__ import annotations

from gateway.catalog.catalog import Server
from gateway.relay.affinity import SLACK_TOKENS, score, session_of
from gateway.relay.place import Place
from gateway.relay.placement import Line, Placement
from gateway.relay.transport import Transport

SESSIONS = [session_of("tenant", f"s{number}") for number in range(600)]


def line(*weights: int, room: int = 1000) -> Line:
    found = Placement().line("m")
    found.set_places(
        [
            Place(f"h{i}", "http://x/v1", Transport(), server=Server("http://x/v1", "", room, w))
            for i, w in enumerate(weights)
        ]
    )
    return found


def where(given: Line, session: str, tokens: int = 0) -> str:
    turn = given.turn(tokens)
    turn.session = session
    place = given.take(turn)
    assert place
    return place.host_id


def test_a_session_stays_where_it_is() -> None:
    given = line(1, 1, 1)
    for session in SESSIONS[:50]:
        assert len({where(given, session) for _ in range(5)}) == 1


def test_sessions_are_spread_by_weight() -> None:
    given = line(1, 2)
    found = [where(given, session) for session in SESSIONS]
    assert 300 < found.count("h1") < 500, "two thirds of 600"


def test_a_place_that_goes_moves_only_its_own_sessions() -> None:
    three, two = line(1, 1, 1), line(1, 1)
    for session in SESSIONS[:100]:
        before = where(three, session)
        assert before == "h2" or where(two, session) == before


def test_under_load_a_session_goes_elsewhere() -> None:
    given = line(1, 1)
    own = where(given, SESSIONS[0], SLACK_TOKENS + 1)
    assert where(given, SESSIONS[0]) != own
    full = line(1, 1, room=1)
    own = where(full, SESSIONS[0])
    assert where(full, SESSIONS[0]) != own


def test_no_session_means_the_least_busy_place() -> None:
    given = line(1, 1)
    assert [where(given, "", tokens) for tokens in (5, 3, 1)] == ["h0", "h1", "h1"]


def test_tenants_that_name_the_same_session_have_two() -> None:
    assert session_of("a", "s") != session_of("b", "s")
    assert session_of("a", "bs") != session_of("ab", "s")
    assert session_of("a", "") == ""


def test_every_draw_is_a_number() -> None:
    assert all(score(session, "h", 1) > 0 for session in SESSIONS)
