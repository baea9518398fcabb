"""Models as serverless pools: configuration, hosts, capability. Knows no tenant and no money."""
