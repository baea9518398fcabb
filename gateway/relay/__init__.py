"""The way to an engine and back: where a request goes, the line it waits in, what comes back."""
