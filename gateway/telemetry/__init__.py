"""Requests told to an OpenTelemetry collector, off the hot path."""
