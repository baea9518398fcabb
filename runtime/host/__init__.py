"""The host: a child process, HTTP around one engine."""
