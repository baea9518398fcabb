"""Who is calling: keys and tenants, tokens of others' issuers and of keys."""
