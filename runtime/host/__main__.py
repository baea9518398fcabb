"""`python -m runtime.host`: what a node spawns."""

from __future__ import annotations

from runtime.host.process import main

if __name__ == "__main__":
    main()
