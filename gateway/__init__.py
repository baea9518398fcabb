"""HTTP in, HTTP out: tenants, keys, catalog, relay, ledger. Knows no tensor."""
