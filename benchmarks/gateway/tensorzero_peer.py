"""TensorZero's HTTP gateway, in a process of its own: it is a library, and chooses its port.

Run by its environment's Python: `tensorzero_peer.py CONFIG`. Prints `READY` and its base URL; ends
when its stdin closes.
"""

from __future__ import annotations

import sys

from tensorzero import _start_http_gateway  # type: ignore[import-not-found]

gateway = _start_http_gateway(
    config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None,
    async_setup=False,
)  # fmt: skip
print("READY " + gateway.base_url, flush=True)
sys.stdin.read()
