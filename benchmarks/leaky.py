"""`python -m benchmarks.leaky FAULT dev …` is `bulkhead dev …` with hosts that have the fault.

The rest of the stack is as it is: gateway, node and the hosts' own HTTP.
"""

from __future__ import annotations

import sys

from benchmarks.leaky_engine import FACTORIES
from engines import registry

AS_HOST = "host"


def main() -> None:
    fault, *rest = sys.argv[1:]
    if rest == [AS_HOST]:
        from runtime.host import process

        registry.FACTORIES["embedded"] = FACTORIES[fault]
        process.main()
        return
    from gateway import cli
    from runtime.node import child

    child.HOST = ("-m", "benchmarks.leaky", fault, AS_HOST)
    sys.argv[1:] = rest
    cli.main()


if __name__ == "__main__":
    main()
