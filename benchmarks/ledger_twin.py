"""The plain twin of the store's writer: each job in a transaction of its own, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gateway.store.address import Database
from gateway.store.connection import open_for_writing, transaction
from gateway.store.sql import Connection
from gateway.store.writer import Job, T, Writer


class RowByRow(Writer):
    """Commits once for each job."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._thread_of_one = ThreadPoolExecutor(1)
        self._connection: Connection | None = None

    def start(self) -> None:
        """The thread starts with the first job."""
        self._connection = self._thread_of_one.submit(self._open).result()

    async def run(self, job: Job[T]) -> T:
        """Run a job in a transaction; its result is durable."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread_of_one, self._alone, job)

    def close(self) -> None:
        """End the thread."""
        self._thread_of_one.submit(self._shut).result()
        self._thread_of_one.shutdown()

    def _open(self) -> Connection:
        return open_for_writing(self._database)

    def _alone(self, job: Callable[[Connection], Any]) -> Any:
        assert self._connection is not None
        with transaction(self._connection):
            return job(self._connection)

    def _shut(self) -> None:
        if self._connection is not None:
            self._connection.close()
