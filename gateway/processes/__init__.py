"""A gateway's processes: granian's workers, the socket they share, the certificates they show."""
