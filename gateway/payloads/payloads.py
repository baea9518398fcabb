"""Whose text is kept, if the config names anybody. A reload may name others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog
from anyio import to_thread

from gateway.payloads.files import PayloadFiles, Played
from gateway.payloads.tape import Tape
from gateway.schema import Ask
from runtime.config.observability import PayloadSettings
from runtime.settings import Settings

log = structlog.get_logger()


class Payloads:
    """Nothing at all until `keep` was told of a tenant."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._settings = PayloadSettings()
        self._tenants: frozenset[str] = frozenset()
        self._files: PayloadFiles | None = None

    def tape(self, tenant: str, ask: Ask, at_us: int) -> Tape | None:
        """What a request of this tenant's is taken down on; None unless the operator wants it."""
        if tenant not in self._tenants:
            return None
        return Tape(tenant, ask, at_us, self._settings.max_bytes)

    def put(self, tape: object, fields: Mapping[str, Any]) -> None:
        """A request has ended, with a tape or without; `fields` are those of its log line."""
        if self._files is None or not isinstance(tape, Tape):
            return
        if tape.tenant in self._tenants:
            self._files.put(Played(tape, fields))

    async def keep(self, settings: Settings, is_known: Callable[[str], bool]) -> None:
        """Keep what these settings name, and nothing else. Tells of names that nobody has."""
        wanted = settings.file.observability.payloads
        if wanted == self._settings:
            return
        if unknown := [name for name in wanted.tenants if not is_known(name)]:
            log.warning("payloads_of_nobody", tenants=unknown)
        before, self._files = self._files, None
        self._settings, self._tenants = wanted, frozenset(wanted.tenants)
        if wanted.tenants:
            folder = settings.state_dir / wanted.folder
            self._files = PayloadFiles(folder, wanted, self._process)
        if before is not None:
            await to_thread.run_sync(before.close)

    async def aclose(self) -> None:
        """Write what is queued, and end."""
        if self._files is not None:
            files, self._files = self._files, None
            await to_thread.run_sync(files.close)
