"""The `bulkhead` command, from its first moment to its exit code.

What it needs is imported once signals and streams are taken care of: nobody is shown a traceback
for a Ctrl-C, a full disk or a pipe that has ended.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from gateway.cli import signals, streams


def main() -> NoReturn:
    """Run the command that this process was started with, and end the process."""
    signals.end_at_once()
    streams.prepare()
    from gateway.cli import ending

    sys.exit(ending.run())
