"""What was said, kept in files where the operator wants it of a tenant. Off by default."""
