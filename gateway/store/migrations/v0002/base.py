"""What all tables share: how constraints are called, and 64 bits on every database."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, MetaData, Text as AnyText
from sqlalchemy.dialects.postgresql import TEXT

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Ordered by its bytes everywhere, whatever the server's language: ids and exports depend on it.
Text = AnyText().with_variant(TEXT(collation="C"), "postgresql")
Big = BigInteger().with_variant(Integer(), "sqlite")
