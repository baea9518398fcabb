"""What a gateway counts of its requests, for Prometheus."""
