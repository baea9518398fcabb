"""How a database gets from any earlier schema to the present one (Alembic)."""
