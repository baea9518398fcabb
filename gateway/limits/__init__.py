"""How much each key, project, tenant and model may take: a minute, and at once."""
