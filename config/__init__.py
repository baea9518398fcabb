"""The configuration that ships with Bulkhead: `bulkhead.toml`."""
