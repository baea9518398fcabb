"""Prompts declared public: all tenants share their pages, and nothing that follows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.api import Message, Request, RequestRefused, Sampling
from engines.embedded.config import EngineConfig, UnsupportedError
from engines.embedded.public import PUBLIC_DOMAIN, PublicPrompts
from engines.embedded.seq import Seq
from engines.tokenizer import FolderTokenizer
from tests.engines.books import check_books, tables_of
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import Answers, ask, drive, random_prompt

ON_BOTH_BACKENDS = True

PUBLIC = random_prompt(18, 1)  # four pages of 4 tokens, and two tokens more


@pytest.fixture(params=[True, False], ids=["overlap", "in turn"])
def make(request: pytest.FixtureRequest, make_tiny: EngineFactory) -> EngineFactory:
    def build(**options: object) -> object:
        engine = make_tiny(overlap=request.param, **options)
        engine._public = PublicPrompts([PUBLIC], 4)
        return engine

    return build  # type: ignore[return-value]


def prompt_of(seed: int) -> list[int]:
    return PUBLIC + random_prompt(9, seed)


def test_a_public_beginning_is_shared_by_all_and_nothing_else_is(
    make: EngineFactory, make_tiny: EngineFactory
) -> None:
    """Whole pages of it only; answers are those of an engine that shares nothing."""
    engine = make()
    first = drive(engine, ask("a", prompt_of(2), domain="a"))
    other = drive(engine, ask("b", prompt_of(2), domain="b"))
    again = drive(engine, ask("c", prompt_of(2), domain="a"))
    assert (first.cached("a"), other.cached("b"), again.cached("c")) == (0, 16, 24)
    alone = drive(make_tiny(prefix_cache=False), ask("x", prompt_of(2))).tokens("x")
    assert first.tokens("a") == other.tokens("b") == again.tokens("c") == alone
    assert engine.stats().tag_mismatches == 0


def test_what_was_not_declared_is_not_shared(make: EngineFactory) -> None:
    """However many tenants send the same words."""
    engine = make()
    prompt = random_prompt(18, 7)
    for domain in "abc":
        assert drive(engine, ask(domain, prompt, domain=domain)).cached(domain) == 0


def test_a_beginning_that_differs_in_one_token_is_private(make: EngineFactory) -> None:
    """Even in the last one, which is in no whole page."""
    engine = make()
    drive(engine, ask("a", prompt_of(2), domain="a"))
    prompt = [*PUBLIC[:-1], (PUBLIC[-1] + 1) % 256, *random_prompt(9, 2)]
    assert drive(engine, ask("b", prompt, domain="b")).cached("b") == 0


def test_a_prompt_that_is_public_and_nothing_more_is_copied_on_write(
    make_tiny: EngineFactory,
) -> None:
    """Its last page is shared whole, and its last token computed in a copy."""
    engine = make_tiny()
    engine._public = PublicPrompts([PUBLIC[:16]], 4)
    first = drive(engine, ask("a", PUBLIC[:16], domain="a"))
    other = drive(engine, ask("b", PUBLIC[:16], domain="b"))
    assert other.cached("b") == 15
    assert other.tokens("b") == first.tokens("a")
    assert engine.stats().tag_mismatches == 0


def test_a_private_page_in_a_public_place_stops_the_row(make_faulty: EngineFactory) -> None:
    """And a public one in a private place, whatever tags were recorded."""
    for place, taken_from in ((1, 5), (5, 1)):
        engine = make_faulty(overlap=False)
        engine._public = PublicPrompts([PUBLIC], 4)
        engine.add(ask("a", prompt_of(2), 12, domain="a"))
        engine.add(ask("b", prompt_of(3), 12, domain="b"))
        answers = Answers()
        for _ in range(3):
            answers.take(engine.step())
        thief, owner = engine.scheduler.running[1], engine.scheduler.running[0]
        thief.block_table[place] = owner.block_table[taken_from]
        thief.tags[place] = owner.tags[taken_from]
        while engine.has_work():
            answers.take(engine.step())
        assert answers.last("b").error is not None
        assert answers.last("a").error is None
        assert len(answers.tokens("a")) == 12


def test_public_pages_outlive_who_computed_them(make: EngineFactory) -> None:
    """Preempted, aborted, in a tight pool: the books balance."""
    engine = make(num_pages=17)
    for i in range(6):
        engine.add(ask(f"x{i}", prompt_of(i), 12, domain=f"d{i % 3}"))
    answers = Answers()
    for number in range(200):
        if not engine.has_work():
            break
        answers.take(engine.step())
        if number == 4:
            engine.abort("x0")
        check_books(engine.pool, tables_of(engine))
    assert all(answers.last(f"x{i}").finish is not None for i in range(1, 6))
    assert engine.stats().tag_mismatches == 0


def test_the_longest_declared_beginning_counts() -> None:
    """In whole pages."""
    public = PublicPrompts([[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8, 9]], 4)
    assert public.num_pages([1, 2, 3, 4, 5]) == 1
    assert public.num_pages([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) == 2
    assert public.num_pages([1, 2, 3]) == 0
    assert Seq.of(Request("r", "a", (1,), Sampling(1))).num_public_pages == 0


class Chat:
    """Renders a chat as its letters, with marks between turns."""

    longest_token_chars = 1

    def encode_chat(self, messages: list[Message]) -> list[int]:
        return [ord(c) for m in messages for c in f"<{m.role}>{m.content}</>"] + [1]


def test_a_declared_system_prompt_ends_where_the_user_begins() -> None:
    """All chats under it begin with the same tokens."""
    public = PublicPrompts.declared(["Be kind."], Chat(), 4)  # type: ignore[arg-type]
    beginning = "<system>Be kind.</><user>"
    chat = [ord(c) for c in beginning + "whatever</>"]
    assert public.num_pages(chat) == len(beginning) // 4
    assert public.num_pages([ord(c) for c in "<system>Be kind!</><user>whatever"]) == 0


def test_a_model_without_chats_has_no_public_prompts(tiny_dir: Path) -> None:
    """The operator is told which option is at fault, and not to send another prompt."""
    with pytest.raises(UnsupportedError, match=r"option 'public_prompts': .*chat template"):
        PublicPrompts.declared(["Be kind."], FolderTokenizer(tiny_dir), 4)


def test_nobody_speaks_for_the_public(make: EngineFactory) -> None:
    """Its domain is no request's."""
    with pytest.raises(RequestRefused, match="public"):
        make().add(ask("x", [1], domain=PUBLIC_DOMAIN))


@pytest.mark.parametrize("wrong", ["text", [""], [1], [["a"]]])
def test_the_option_is_a_list_of_texts(wrong: object) -> None:
    """Or refused before anything starts."""
    with pytest.raises(UnsupportedError, match="public_prompts"):
        EngineConfig.from_options({"public_prompts": wrong})
    assert EngineConfig.from_options({"public_prompts": ["Be kind."]}).public_prompts
