"""`python -m runtime.host`: what a node spawns. A cold start waits for all that it imports."""

from __future__ import annotations

import gc
import sys

gc.disable()  # until it serves: what is loaded stays, and to look for garbage in it takes 50 ms
# structlog imports rich wherever it is installed, which takes 50 ms, for a terminal: here is none.
sys.modules["rich"] = None  # type: ignore[assignment]

from runtime.host.process import main  # noqa: E402

if __name__ == "__main__":
    main()
