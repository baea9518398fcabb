"""The peers, built for this machine: llama.cpp's server with its own kernels, and OpenVINO GenAI.

    python -m benchmarks.peers

takes some minutes, once. Everything lies below .bulkhead/bench/peers, nothing in our environment.
A prebuilt llama.cpp is compiled for AVX2 at most; a fair peer is compiled as its users do it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from benchmarks.bulkhead import SCRATCH

PEERS = SCRATCH / "peers"
LLAMA_CPP = "llama-cpp-python==0.3.36"  # its source distribution holds llama.cpp's
LLAMA_SERVER = PEERS / "llama-server"
OPENVINO = "openvino-genai==2026.4.1.0"
OPENVINO_PYTHON = PEERS / "openvino" / "bin" / "python"
CMAKE = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF"),
    *("-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"),
)
# GCC 12 drops what is stored into a configuration of AMX's tiles, of which its intrinsic tells it 8
# bytes; llama.cpp then dies of SIGILL at the first product.
KEEPS_STORES = "-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse"


def main() -> None:
    PEERS.mkdir(parents=True, exist_ok=True)
    if not LLAMA_SERVER.exists():
        _build_llama_server()
    if not OPENVINO_PYTHON.exists():
        _install_openvino()
    print(f"ready: {LLAMA_SERVER}, {OPENVINO_PYTHON}")


def _build_llama_server() -> None:
    """From the source distribution, for this CPU."""
    with tempfile.TemporaryDirectory(dir=PEERS) as folder:
        pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:all:")
        _run(*pip, "--no-build-isolation", f"--dest={folder}", LLAMA_CPP)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        (source,) = Path(folder).glob("*/vendor/llama.cpp")
        build = source / "build"
        more = [KEEPS_STORES] if _has_amx() else []
        _run("cmake", "-S", str(source), "-B", str(build), *CMAKE, *more)
        jobs = str(os.cpu_count() or 1)
        _run("cmake", "--build", str(build), "--parallel", jobs, "--target", "llama-server")
        (build / "bin" / "llama-server").rename(LLAMA_SERVER)


def _has_amx() -> bool:
    return " amx_tile" in Path("/proc/cpuinfo").read_text()


def _install_openvino() -> None:
    """Into an environment of its own: its numpy isn't ours."""
    _run(sys.executable, "-m", "venv", str(OPENVINO_PYTHON.parent.parent))
    _run(str(OPENVINO_PYTHON), "-m", "pip", "install", "--quiet", OPENVINO)


def _run(*command: str) -> None:
    print(" ".join(command), flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
