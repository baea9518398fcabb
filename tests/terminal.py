"""A terminal for the tests: a command runs in it, and what it shows is read all the while."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import subprocess
import termios
import threading
import time

from tests.stack import REPO

PATIENCE_S = 60.0


class Terminal:
    """A terminal of 100 columns and 30 lines."""

    def __init__(self, *command: str) -> None:
        self.controller, terminal = pty.openpty()
        self.output = b""
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", 'stty cols 100 rows 30; exec "$@"', "sh", *command],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=REPO,
            env=os.environ | {"TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it
        )
        os.close(terminal)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self.controller, 65536):
                self.output += data
        except OSError:  # the last that had it open is gone
            return

    @property
    def text(self) -> str:
        """What was shown, without colours and movements of the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.output.decode("utf-8", "replace"))

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.text:
            assert time.monotonic() < deadline, f"never shown: {text!r} in\n{self.text[-2000:]}"
            time.sleep(0.05)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)
        os.close(self.controller)
