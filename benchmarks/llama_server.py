"""A real llama.cpp server over a GGUF file, from the prebuilt wheel `xllamacpp`.

    python -m benchmarks.llama_server --model model.gguf

prints `READY http://127.0.0.1:PORT/v1` once it answers, and ends on SIGTERM or when its stdin
closes. Continuous batching is on. Its prompt cache in RAM is off; whether a slot keeps the prompt
it had is each request's own field, `cache_prompt`, and `--cache-prompt` sets what is assumed.
The wheel is compiled for AVX2: a `llama-server` built for the machine itself may be faster, and
`built` runs one.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.process import Child, child, free_port, python

READY = "READY "
ANSWER_S = 60.0


@contextmanager
def running(model: Path, **options: int) -> Iterator[str]:
    """A server in a child process: its base URL, which ends in /v1. Options as on the command
    line: `port`, `slots`, `threads`, `ctx`, `cache_prompt`. Raises process.ChildFailed.
    """
    with started(model, None, **options) as (url, _):
        yield url


@contextmanager
def built(binary: Path, model: Path) -> Iterator[str]:
    """A llama-server that somebody compiled, with the same settings: its base URL."""
    with started(model, binary) as (url, _):
        yield url


@contextmanager
def started(model: Path, binary: Path | None = None, **options: int) -> Iterator[tuple[str, Child]]:
    """The wheel's server, or a binary's: its base URL, and the child that it is."""
    if binary is None:
        given = [f"--{name.replace('_', '-')}={value:d}" for name, value in options.items()]
        command = python("benchmarks.llama_server", f"--model={model.resolve()}", *given)
        with child(command, READY, wait_s=ANSWER_S) as server:
            yield server.printed(READY), server
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    with child(
        _command(binary, model, port, **options), url=f"{url}/models", wait_s=ANSWER_S
    ) as server:
        yield url, server


def _command(
    binary: Path, model: Path, port: int, *, slots: int = 32, threads: int = 2, ctx: int = 16384
) -> list[str]:
    return [
        *(str(binary), "--model", str(model), "--port", str(port)),
        *("--parallel", str(slots), "--cont-batching", "--ctx-size", str(ctx)),
        *("--threads", str(threads), "--threads-batch", str(threads)),
        *("--flash-attn", "auto", "--cache-ram", "0", "--no-cache-prompt"),
    ]


def main() -> None:
    options = _options()
    printer = _stdout_for_us_alone()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = _start(options)  # returns when the model is loaded and the port answers
    url = f"{server.listening_address}/v1"
    os.write(printer, f"{READY}{url}\n".encode())
    threading.Thread(target=_await_end_of_stdin, args=(stop,), daemon=True).start()
    while not stop.wait(0.5):  # waits in pieces, so that a signal's handler gets its turn
        pass
    del server  # its destructor ends its threads


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--slots", type=int, default=32, help="requests at a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=16384, help="tokens, shared out to the slots")
    parser.add_argument(
        "--cache-prompt", type=int, default=0, help="1: a slot reuses a common prefix by default"
    )
    return parser.parse_args()


def _start(options: argparse.Namespace) -> Any:
    """Load the model and listen."""
    import xllamacpp  # only this process needs it

    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.ctx
    params.cont_batching = True
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.cache_prompt = bool(options.cache_prompt)
    params.cache_ram_mib = 0
    params.ui = False
    params.verbosity = 1  # warnings
    return xllamacpp.Server(params)


def _stdout_for_us_alone() -> int:
    """A descriptor of the real stdout; whatever the library prints goes to stderr."""
    ours = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return ours


def _await_end_of_stdin(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.set()


if __name__ == "__main__":
    main()
