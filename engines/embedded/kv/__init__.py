"""The bytes behind the pages: their memory, their layout, and how numbers lie in them."""

from __future__ import annotations

from engines.embedded.kv.bytes import PageBytes
from engines.embedded.kv.memory import SharedMemory
from engines.embedded.kv.scales import Scales

__all__ = ["PageBytes", "Scales", "SharedMemory"]
