"""What a server that is to be attached really does, tried on it from outside."""
