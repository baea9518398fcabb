"""The database: its schema, its migrations, one writer thread and any number of readers."""
