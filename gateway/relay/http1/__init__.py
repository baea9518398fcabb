"""Our own HTTP/1.1 client: connections, and how an answer is read from their bytes."""
