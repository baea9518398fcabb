"""PostgreSQL, through psycopg: one database for several gateways. Imported where it is used."""
