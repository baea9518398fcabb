"""A model's failures in a row, and when it is tried again. Pure: the time is an argument."""

from __future__ import annotations

from runtime.config.sections import HostSettings
from runtime.node.scaling import backoff_s, failures_after

REPEATS_S = 600.0  # a host that asks to be replaced so soon after another one did is a failure


class Failures:
    """`count` of them in a row, the last one's `reason`, and whether the model has failed.

    One that has failed is tried once more when its time has come: if that fails too, it has
    failed again. Times are seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self.count = 0
        self.reason = ""
        self.has_failed = False
        self.retry_at = 0.0
        self._last_at = 0.0
        self._retired_at: float | None = None

    def note(self, reason: str, lived_s: float, now: float, settings: HostSettings) -> None:
        """A host that had served for `lived_s` has failed."""
        self.count, self.reason = failures_after(self.count, lived_s), reason
        self._last_at = now
        self.has_failed = self.count >= settings.max_failures
        wait_s = backoff_s(self.count, settings.backoff_first_s, settings.backoff_max_s)
        self.retry_at = now + (settings.retry_failed_s if self.has_failed else wait_s)

    def note_retirement(
        self, reason: str, lived_s: float, now: float, settings: HostSettings
    ) -> bool:
        """A host wants to be replaced: whether that is a failure, since it happens again and again.

        One is none: it did what it should, and the next may serve for years.
        """
        is_repeated = self._retired_at is not None and now - self._retired_at < REPEATS_S
        self._retired_at = now
        if is_repeated:
            self.note(reason, lived_s, now, settings)
        return is_repeated

    def holds_back(self, now: float) -> bool:
        """Whether no host may be started just now."""
        if self.has_failed and now >= self.retry_at:
            self.has_failed = False
        return now < self.retry_at

    def forgive(self, ready_at: float) -> None:
        """A host that was ready at that time has served well: what was before it is forgotten.

        One that served already when others failed says nothing of those.
        """
        if ready_at > self._last_at:
            self.clear()

    def clear(self) -> None:
        """The operator says that it will work now."""
        self.count, self.reason, self.has_failed, self.retry_at = 0, "", False, 0.0
