"""Certificates: read, checked, described, followed; and the sockets they are shown on."""
