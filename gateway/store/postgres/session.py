"""A session with a PostgreSQL server, which runs the store's statements as SQLite does.

Writing is serialised by one advisory lock, held until the transaction ends: by it numbers have no
gaps and no two writers wait for each other. A session that stands still inside a transaction, as
one whose process is stopped, is ended by the server, so that it doesn't hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper, NumericBinaryLoader, NumericLoader

from gateway.store.address import Postgres
from gateway.store.errors import StoreUnavailable
from gateway.store.postgres.faults import as_ours
from gateway.store.postgres.statements import for_psycopg, in_places
from gateway.store.sql import Cursor, Row, Values

WRITING = 0x62_75_6C_6B  # the advisory lock: any number that is ours
STANDING_STILL_S = 10
STATEMENT_S = 60
READING_S = 3600

_DEFAULTS = {  # the URL may say otherwise
    "connect_timeout": 5,
    "application_name": "bulkhead",
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,  # ms
    "target_session_attrs": "read-write",  # a standby may lag behind, and know a revoked key
}
_LIMITS = (
    f"SET statement_timeout = '{STATEMENT_S}s';"
    f" SET idle_in_transaction_session_timeout = '{STANDING_STILL_S}s'"
)
T = TypeVar("T")

_BEGIN_READING = (  # who reads holds up nobody, and may take its time over all records there are
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
    f" SET LOCAL statement_timeout = '{READING_S}s';"
    f" SET LOCAL idle_in_transaction_session_timeout = '{READING_S}s'"
)
_DURABLE = """
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') = 'off'
"""


class PostgresSession:
    """See `sql.Session`. It commits each statement by itself outside of `begin` and `commit`."""

    def __init__(self, address: Postgres) -> None:
        """Raises StoreUnavailable."""
        self._address = address
        self._plain = connect(address)
        try:
            self._script(_LIMITS)
            self._script(_DURABLE)
        except StoreUnavailable:
            self.close()
            raise

    def execute(self, sql: str, values: Values | None = None, /) -> Cursor:
        """Run a statement. Raises StoreUnavailable, or one of the store's IntegrityErrors."""
        text = for_psycopg(sql)
        plain = {name: _plain(value) for name, value in values.items()} if values else {}
        return self._told(lambda: self._plain.cursor(binary=True).execute(text, plain))

    def executemany(self, sql: str, rows: Iterable[Row], /) -> Cursor:
        """Run it for each of the rows, in one exchange with the server."""
        text, cursor = in_places(sql), self._plain.cursor(binary=True)
        many = [[_plain(value) for value in row] for row in rows]
        self._told(lambda: cursor.executemany(text, many))
        return cursor

    def begin(self) -> None:
        """Begin to write, once no other session does."""
        self._script(f"BEGIN; SELECT pg_advisory_xact_lock({WRITING})")

    def begin_reading(self) -> None:
        """See one snapshot from now on, until `commit`."""
        self._script(_BEGIN_READING)

    def commit(self) -> None:
        """Raises StoreUnavailable if anything had failed, or ended it: PostgreSQL wouldn't mind."""
        if self._plain.info.transaction_status is TransactionStatus.IDLE:
            raise StoreUnavailable(f"The database {self._address} has lost a transaction.")
        if (done := self._script("COMMIT")) != "COMMIT":
            raise StoreUnavailable(f"The database {self._address} didn't commit: {done}.")

    def close(self) -> None:
        """Let go; what isn't committed is undone."""
        self._plain.close()

    def _script(self, sql: str) -> str | None:
        return self._told(lambda: self._plain.execute(sql.encode())).statusmessage

    def _told(self, run: Callable[[], T]) -> T:
        try:
            return run()
        except psycopg.Error as error:
            ours = as_ours(error, self._address)
            if ours is error:
                raise
            raise ours from error


def connect(address: Postgres) -> psycopg.Connection[Any]:
    """psycopg's own connection, which commits each statement. Raises StoreUnavailable."""
    try:
        given: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(address.url)}
        if address.password:
            given["password"] = address.password
        plain = psycopg.connect(autocommit=True, **given)
    except psycopg.Error as error:
        text = address.without_password(" ".join(str(error).split()))
        raise StoreUnavailable(f"The database {address} can't be opened: {text}") from None
    plain.adapters.register_dumper(int, Int8BinaryDumper)  # one type, so one plan a statement
    plain.adapters.register_loader("numeric", _Whole)
    plain.adapters.register_loader("numeric", _WholeBinary)
    return plain


class _Whole(NumericLoader):
    """Sums of integers are numeric, to have room; here they are integers again."""

    def load(self, data: Any) -> Any:
        return _whole(super().load(data))


class _WholeBinary(NumericBinaryLoader):
    """The same."""

    def load(self, data: Any) -> Any:
        return _whole(super().load(data))


def _whole(number: Decimal) -> int | Decimal:
    return int(number) if number == number.to_integral_value() else number


def _plain(value: object) -> object:
    """What SQLite takes too: an engine's text may hold a NUL, which PostgreSQL's may not."""
    if value is True or value is False:
        return int(value)
    if isinstance(value, str) and "\0" in value:
        return value.replace("\0", "\ufffd")
    return value
