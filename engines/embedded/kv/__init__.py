"""The bytes behind the pages: their memory, their layout, and how numbers lie in them."""

from __future__ import annotations

from engines.embedded.kv.cache import LAYOUT, TORCH_DTYPES, KvCache
from engines.embedded.kv.memory import SharedMemory
from engines.embedded.kv.scales import Scales

__all__ = ["LAYOUT", "TORCH_DTYPES", "KvCache", "Scales", "SharedMemory"]
