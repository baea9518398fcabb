"""What a launcher tells systemd: that it is ready, how it is, that it still goes round."""

from __future__ import annotations

import socket
from contextlib import suppress

BEATS = 3  # within the time that systemd waits for one


class Notifier:
    """Tells the service manager at `address`; nobody where it is ""."""

    def __init__(self, address: str, watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.beat_s = watchdog_s / BEATS  # 0: no beat is waited for

    def ready(self) -> None:
        """It can answer."""
        self._send("READY=1")

    def stopping(self) -> None:
        """It ends, as it was told to."""
        self._send("STOPPING=1")

    def beat(self) -> None:
        """It goes round."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for people, in `systemctl status`."""
        self._send(f"STATUS={text.replace(chr(10), ' ')}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(message.encode(), self._address)
