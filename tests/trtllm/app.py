"""trtllm-serve's routes, the private ones too, and a record of which were touched."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.trtllm import protocol
from tests.trtllm.executor import CppExecutorError, Executor, Job, Output, Promise, RequestError
from tests.trtllm.faults import Fault, Faults
from tests.trtllm.options import Options
from tests.trtllm.protocol import Counts, Invalid, Writer
from tests.trtllm.text import Prompts

DISCONNECT_S = 1.0  # how often it looks whether a client is still there
DEFAULT_TOKENS = 1000  # an answer's, if nobody says `max_tokens`
PRIVATE = {
    **dict.fromkeys(
        ("/health_generate", "/version", "/metrics", "/perf_metrics", "/steady_clock_offset",
         "/server_info", "/prometheus/metrics"), ("GET",),
    ),
    **dict.fromkeys(
        ("/kv_cache_events", "/v1/kv_cache_hints", "/v1/responses", "/release_memory",
         "/resume_memory", "/update_weights", "/start_profile", "/stop_profile",
         "/_internal/tokenize"), ("POST",),
    ),
    "/v1/responses/{response_id}": ("GET", "DELETE"),
}  # fmt: skip


@dataclass
class Seen:
    """One request, as it came in."""

    method: str
    target: str  # path and query, as they were written
    headers: list[tuple[str, str]]
    body: Any = None


@dataclass
class FakeServe:
    """The server without its sockets."""

    options: Options
    version: str = "1.2.1"
    faults: Faults = field(default_factory=Faults)
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.executor = Executor(self.options, self.faults)
        self._prompts = Prompts(self.options.model)
        folder = Path(self.options.model)
        self.model = folder.name if folder.is_dir() else self.options.model
        self._tasks: set[asyncio.Task[None]] = set()
        self._app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._completion, methods=["POST"]),
                *(Route(path, self._private, methods=list(m)) for path, m in PRIVATE.items()),
            ],
            exception_handlers={HTTPException: _told},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            query = scope["query_string"]
            target = (scope["raw_path"] + (b"?" + query if query else b"")).decode("latin-1")
            headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
            seen = Seen(scope["method"], target, headers)
            self.seen.append(seen)
            scope["seen"] = seen
        await self._app(scope, receive, send)

    async def _health(self, _: Request) -> Response:
        return Response(status_code=503 if self.faults.has("is_down") else 200)

    async def _models(self, _: Request) -> Response:
        card = {"id": self.model, "object": "model", "created": 1, "owned_by": "tensorrt_llm"}
        return JSONResponse({"object": "list", "data": [card]})

    async def _private(self, request: Request) -> Response:
        path = request.url.path
        if path == "/kv_cache_events":
            return JSONResponse([list(ids) for ids in self.executor.cache.drain()])
        if path == "/v1/kv_cache_hints":
            self.executor.cache.clear()
        told = {"/version": {"version": self.version}, "/metrics": []}
        return JSONResponse(told.get(path, {}))

    async def _chat(self, request: Request) -> Response:
        return await self._infer(request, is_chat=True)

    async def _completion(self, request: Request) -> Response:
        return await self._infer(request, is_chat=False)

    async def _infer(self, request: Request, *, is_chat: bool) -> Response:
        faults = self.faults.take(await request.body())
        if "is_down" in faults:
            return Response("a rank has crashed", status_code=503)
        try:
            body = json.loads(await request.body())
            request.scope["seen"].body = body
            known = protocol.CHAT - {"prompt_token_ids"} if "no_token_ids" in faults else None
            protocol.check(body, is_chat=is_chat, known=known if is_chat else None)
            if "refuses_all" in faults:
                raise Invalid("value_error", (), "Value error, no such thing", body)
        except (Invalid, ValueError) as fault:
            return JSONResponse({"error": str(fault)}, 400)
        try:
            return await self._answer(request, body, faults, is_chat=is_chat)
        except CppExecutorError:
            signal.raise_signal(signal.SIGINT)
            return JSONResponse(None)  # FastAPI writes what the handler doesn't return
        except Exception as fault:  # noqa: BLE001 - as the real one does
            return JSONResponse(protocol.error(str(fault)), 400)

    async def _answer(
        self, request: Request, body: dict[str, Any], faults: dict[str, Fault], *, is_chat: bool
    ) -> Response:
        if "internal_error" in faults:
            told = protocol.error("harmony parsing failed", "internal_error")
            return JSONResponse(told, 400)
        if "cuda_error" in faults:
            raise RequestError("CUDA error: an illegal memory access was encountered")
        job = self._job(body, faults, is_chat=is_chat)
        promise = self.executor.generate_async(job)
        watch = asyncio.ensure_future(_await_disconnected(request, promise))
        self._tasks.add(watch)
        watch.add_done_callback(self._tasks.discard)
        writer = Writer(body["model"], is_chat=is_chat, new_ids="new_ids" in faults,
                        quotes="quotes" in faults)  # fmt: skip
        if body.get("stream"):
            events = _events(job, promise, writer, body, is_chat=is_chat)
            return StreamingResponse(events, media_type="text/event-stream")
        return JSONResponse(await _whole(job, promise, writer))

    def _job(self, body: dict[str, Any], faults: dict[str, Fault], *, is_chat: bool) -> Job:
        given = body.get("prompt_token_ids") if is_chat else body["prompt"]
        if isinstance(given, list) and "other_prompt" not in faults:
            ids = tuple(given)
        elif is_chat:
            ids = self._prompts.chat(body["messages"])
        else:
            ids = self._prompts.plain(body["prompt"])
        stop = body.get("stop") or []
        return Job(
            ids=ids,
            salt=body.get("cache_salt"),
            max_tokens=body.get("max_tokens")
            or body.get("max_completion_tokens")
            or DEFAULT_TOKENS,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            faults=faults,
        )


def _counts(job: Job, output: Output) -> Counts:
    return Counts(len(job.ids), output.length, output.cached_tokens)


async def _whole(job: Job, promise: Promise, writer: Writer) -> dict[str, Any]:
    text, last = "", Output("", 0, 0)
    async for last in promise.outputs():
        text += last.text_diff
    return writer.whole(text, last, None if "no_usage" in job.faults else _counts(job, last))


async def _events(
    job: Job, promise: Promise, writer: Writer, body: dict[str, Any], *, is_chat: bool
) -> AsyncIterator[bytes]:
    """Each output's events. What is raised in here closes the connection, and tells nothing."""
    options = body.get("stream_options") or {"include_usage": False}
    is_counted = options.get("include_usage", True) and "no_usage" not in job.faults
    counts_along = is_counted and options.get("continuous_usage_stats", False)
    is_first, last = True, Output("", 0, 0)
    async for output in promise.outputs():
        told = {"usage": _counts(job, output).usage()} if counts_along else {}
        if is_first and is_chat:
            none = Counts(len(job.ids), 0, output.cached_tokens).usage()
            role = writer.role() | ({"usage": none} if counts_along else {})
            yield f"data: {json.dumps(role)} \n\n".encode()
        if "garbage" in job.faults and not is_first:
            yield b"data: {a chunk that isn't\n\n"
        is_first, last = False, output
        yield f"data: {json.dumps(writer.piece(output) | told)}\n\n".encode()
    if is_counted:
        total = writer.total(_counts(job, last)) | ({} if is_chat else {"prompt_token_ids": None})
        yield f"data: {json.dumps(total)}\n\n".encode()
    if "no_done" not in job.faults:
        yield b"data: [DONE]\n\n"


async def _await_disconnected(request: Request, promise: Promise) -> None:
    while not promise.is_finished and not await request.is_disconnected():
        await asyncio.sleep(DISCONNECT_S)
    promise.abort()


async def _told(_: Request, fault: Exception) -> Response:
    """404 and 405, as FastAPI tells them."""
    assert isinstance(fault, HTTPException)
    return JSONResponse({"detail": fault.detail}, fault.status_code)
