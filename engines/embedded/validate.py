"""What can never run here: a request beyond the limits, and limits beyond the model's."""

from __future__ import annotations

import math

from engines.api import ContextLengthExceeded, Request, RequestRefused, Sampling
from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError, max_context
from engines.embedded.public import PUBLIC_DOMAIN


def refuse_unfit(request: Request, vocab_size: int, max_context_tokens: int) -> None:
    """Raise RequestRefused, or ContextLengthExceeded, saying what is wrong."""
    if request.domain == PUBLIC_DOMAIN:
        raise RequestRefused("no request is of the public domain")
    if not request.prompt:
        raise RequestRefused("the prompt is empty")
    if not all(0 <= token < vocab_size for token in request.prompt):
        raise RequestRefused(f"the prompt holds a token outside 0..{vocab_size - 1}")
    _refuse_sampling(request.sampling)
    prompt_len, max_tokens = len(request.prompt), request.sampling.max_tokens
    if prompt_len + max_tokens > max_context_tokens:
        raise ContextLengthExceeded(
            f"{prompt_len} prompt tokens and {max_tokens} answer tokens "
            f"exceed the context of {max_context_tokens}"
        )


def fit_context(model: ModelConfig, config: EngineConfig, num_pages: int) -> int:
    """Tokens that prompt and answer may have together. Raises UnsupportedError if it's too many."""
    if config.max_context > model.max_context:
        raise UnsupportedError(f"option 'max_context' exceeds the model's {model.max_context}")
    return max_context(model, config, num_pages)


def _refuse_sampling(sampling: Sampling) -> None:
    if sampling.max_tokens < 1:
        raise RequestRefused("max_tokens must be at least 1")
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise RequestRefused("temperature must be a finite number, 0 or more")
    if not 0 < sampling.top_p <= 1:
        raise RequestRefused("top_p must be above 0 and at most 1")
