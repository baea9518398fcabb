"""The tables as migration 0002 makes them, and their triggers. Never edited once released."""
