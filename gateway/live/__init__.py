"""What `bulkhead dev` shows on a terminal: requests as they end, models and hosts below."""
