"""One answer on its way out of a host: tokens become text, and stop strings end it.

Told outputs of the engine; yields pieces of text with running counts. Knows neither HTTP nor JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.api import Decoder, FinishReason, Output


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that may leave, the output tokens counted so far, and why the answer ended (if so)."""

    text: str
    output_tokens: int
    finish: FinishReason | None = None


class StopScanner:
    """Cuts text at the first stop string, holding back what could still become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that may leave, whether a stop string was met)."""
        if not self._stops:
            return text, False
        self._held += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:  # the first to be whole, so that it's the same however the text was cut
            return self._held[: min(found)[1]], True
        keep = self._ambiguous()
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out, False

    def flush(self) -> str:
        """What was held back, once nothing can follow it."""
        held, self._held = self._held, ""
        return held

    def _ambiguous(self) -> int:
        """Length of the longest tail that begins some stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0


class Answer:
    """The state of one answer between two outputs."""

    def __init__(self, decoder: Decoder, stops: Sequence[str]) -> None:
        self._decoder = decoder
        self._scanner = StopScanner(stops)
        self.output_tokens = 0

    def push(self, output: Output) -> Piece:
        """The text that this output completes. Raises the engine's error if it carries one."""
        if output.error is not None:
            raise output.error
        text = ""
        for token_id in output.token_ids:
            self.output_tokens += 1
            part, stopped = self._scanner.push(self._decoder.push(token_id))
            text += part
            if stopped:  # tokens after this one were never asked for: they don't count
                return Piece(text, self.output_tokens, FinishReason.STOP)
        if output.finish is None:
            return Piece(text, self.output_tokens)
        return self._last(text, output.finish)

    def _last(self, text: str, finish: FinishReason) -> Piece:
        part, stopped = self._scanner.push(self._decoder.flush())
        tail = "" if stopped else self._scanner.flush()
        return Piece(
            text + part + tail, self.output_tokens, FinishReason.STOP if stopped else finish
        )
