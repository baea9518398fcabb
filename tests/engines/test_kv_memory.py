"""The memory under the pages: shared by descriptor, lazy, sealed, and left out of core dumps."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engines.embedded.kv import SharedMemory
from engines.embedded.kv.cache import KvCache
from tests.engines.kv_pools import MODEL, config, everything, fill

MIB = 1 << 20
PEER = """
import sys
from engines.embedded.kv import SharedMemory
from engines.embedded.kv.cache import KvCache
from tests.engines.kv_pools import MODEL, config, fill

kv = KvCache(MODEL, config(), memory=SharedMemory.attach(int(sys.argv[1])))
fill(kv, [5], seed=77)
"""


def mapping(memory: SharedMemory) -> dict[str, str]:
    """What the kernel tells of this mapping, by name."""
    start, found = f"{memory.data.ctypes.data:x}-", {}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if "-" in line.split(" ")[0]:
            inside = line.startswith(start)
            if inside:
                found["path"] = line.split(maxsplit=5)[5]
        elif inside:
            found[name] = rest.strip()
    return found


@pytest.fixture
def memory() -> SharedMemory:
    return SharedMemory.create(64 * MIB)


def test_untouched_memory_takes_none(memory: SharedMemory) -> None:
    """Only what was written is resident, and asking about the rest changes nothing."""
    assert memory.data.shape == (64 * MIB,)
    assert mapping(memory)["Rss"] == "0 kB"
    memory.data[10 * MIB] = 1
    assert memory.untouched(0, 10 * MIB)
    assert not memory.untouched(0, 10 * MIB + 1)
    assert not memory.untouched(10 * MIB, 11 * MIB)
    assert memory.untouched(12 * MIB, 64 * MIB)
    assert int(mapping(memory)["Rss"].split()[0]) <= 2048  # one page, be it a huge one


def test_pages_that_were_never_used_are_known_to_be_zero_without_being_touched() -> None:
    """A sweep over all free pages of a big pool takes no memory."""
    kv = KvCache(MODEL, config(num_pages=10_000))
    fill(kv, [9000])
    assert [page for page in range(kv.num_pages) if not kv.is_zero(page)] == [9000]
    assert int(mapping(kv.memory)["Rss"].split()[0]) <= 2048


def test_it_has_no_name_and_is_in_no_core_dump(memory: SharedMemory) -> None:
    """Nothing in /dev/shm to open; `dd` is the kernel's flag for MADV_DONTDUMP."""
    found = mapping(memory)
    assert found["path"].startswith("/memfd:")
    assert "dd" in found["VmFlags"].split()


def test_its_size_is_fixed_for_good(memory: SharedMemory) -> None:
    """A peer that shortened it would end us at the next look."""
    for size in (0, 65 * MIB):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)


def test_a_second_process_fills_a_page_that_we_read() -> None:
    """It gets nothing but the descriptor."""
    kv, here = KvCache(MODEL, config()), KvCache(MODEL, config())
    fill(here, [5], seed=77)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PEER, str(kv.memory.fd)]
    subprocess.run(command, check=True, cwd=root, pass_fds=[kv.memory.fd], timeout=120)
    assert everything(kv, [5]).equal(everything(here, [5]))
    assert [page for page in range(kv.num_pages) if not kv.is_zero(page)] == [5]


def test_only_sealed_memory_is_attached(tmp_path: Path) -> None:
    """A file, or a memfd whose size may change, is refused; neither descriptor is taken over."""
    with open(tmp_path / "file", "wb+") as file:
        file.truncate(4096)
        unsealed = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        for fd in (file.fileno(), unsealed):
            with pytest.raises(ValueError, match="not sealed"):
                SharedMemory.attach(fd)
        os.close(unsealed)


def test_the_descriptor_goes_with_the_object_and_the_bytes_with_their_last_view() -> None:
    """A tensor that outlives its pool still reads; nothing leaks."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    memory = SharedMemory.create(MIB)
    view: np.ndarray[tuple[int], np.dtype[np.uint8]] = memory.data[:10]
    fd = memory.fd
    del memory
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    view[:] = 3
    assert view.sum() == 30
    del view
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
