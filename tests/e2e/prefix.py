"""What of a prompt the embedded engine finds again, by its page rule."""

from __future__ import annotations

from engines.embedded.config import EngineConfig

PAGE = EngineConfig().page_size  # tokens


def reusable(prompt_tokens: int) -> int:
    """Tokens of a prompt that its second sending finds: its full pages.

    But never its last token, which is computed each time: its logits choose the first answer token.
    """
    return min(prompt_tokens // PAGE * PAGE, prompt_tokens - 1)
