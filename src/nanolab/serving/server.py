"""Running the service on a socket: bind first, load the engine, say ready, and end in the right order.

The signals are ours. On SIGINT or SIGTERM the worker drains first, so that every open stream ends with a terminal
event; only then is uvicorn told to exit, which it does once those streams are written. A second signal ends what
is left at once; while the engine still loads, which nothing can interrupt, it ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from nanolab.errors import LabError
from nanolab.serving.app import create_app
from nanolab.serving.delivery import Listener
from nanolab.serving.engine import CreateEngine, Engine
from nanolab.serving.lifecycle import State, WorkerLimits, settled_interpreter
from nanolab.serving.metrics import Metrics
from nanolab.serving.service import ServerSettings, Service
from nanolab.serving.worker import Worker

__all__ = ["ServeOptions", "bind", "serve"]

WRITE_OUT_S = 3.0  # for the last events of open streams, after the drain


@dataclass(frozen=True)
class ServeOptions:
    host: str = "127.0.0.1"
    port: int = 8801
    worker_id: str = "worker-0"
    model_id: str = "model"
    model_root: str = "model"
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    settings: ServerSettings = field(default_factory=ServerSettings)
    drain_s: float = 10.0
    facts: dict[str, Any] = field(default_factory=dict)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, or a LabError that says what to do. Done before the engine loads, which takes a while."""
    if not 0 <= port <= 65535:
        raise LabError(f"cannot listen on {host}:{port}: a port is a number from 0 to 65535; check --port")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # NOTE: asyncio turns Nagle's algorithm off only on sockets that name TCP; left on, a small write waits for
        # the client's delayed acknowledgement, and tokens come 40 ms late.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except OSError:
            bound.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LabError(f"port {port} on {host} is in use; stop that server or choose another --port") from error
        raise LabError(f"cannot listen on {host}:{port}: {error.strerror}; check --host and --port") from error
    bound.setblocking(False)
    return bound


class LabServer(uvicorn.Server):
    """uvicorn without its own signal handling."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    create_engine: CreateEngine,
    options: ServeOptions,
    *,
    listeners: tuple[Listener, ...] = (),
    on_started: Callable[[Worker], None] | None = None,
    on_ready: Callable[[str, Worker], None] | None = None,
    stop: asyncio.Event | None = None,
) -> str | None:
    """Serve until a signal (or `stop`); returns None, or why the worker died."""
    bound = bind(options.host, options.port)
    stop = stop or asyncio.Event()
    hurry = asyncio.Event()
    metrics = Metrics(options.model_id)
    worker = Worker(
        create_engine,
        options.limits,
        worker_id=options.worker_id,
        loop=asyncio.get_running_loop(),
        listeners=(metrics, *listeners),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(bound))
        stack.enter_context(_signals(stop, hurry, loading=lambda: worker.state is State.STARTING))
        tokenizer = await _start(worker, on_started)
        service = Service(
            worker, tokenizer, options.model_id, options.model_root, metrics, options.settings, options.facts
        )
        server = LabServer(_uvicorn_config(service, options))
        running = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            stack.enter_context(settled_interpreter())
            await _wait_started(server, running)
            if on_ready is not None:
                host, port = bound.getsockname()[:2]
                on_ready(f"http://{host}:{port}", worker)
            await _first_of(stop.wait(), running)
        finally:
            await _drain(worker, options.drain_s, hurry)
            await _exit(server, running)
            service.close()
    return worker.failure if worker.state is State.DEAD else None


async def _start(worker: Worker, on_started: Callable[[Worker], None] | None) -> Any:
    """Load the engine; `on_started` runs before the first request can come. Returns the tokenizer."""
    await asyncio.to_thread(worker.start)
    try:
        if on_started is not None:
            on_started(worker)
    except BaseException:
        await asyncio.to_thread(worker.close)
        raise

    def tokenizer(engine: Engine) -> Any:
        return engine.tokenizer

    return await asyncio.wrap_future(worker.call(tokenizer))


def _uvicorn_config(service: Service, options: ServeOptions) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service),
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
    )


async def _wait_started(server: LabServer, running: asyncio.Task[None]) -> None:
    while not server.started:
        if running.done():
            await running
            raise RuntimeError("the HTTP server stopped before it had started")
        await asyncio.sleep(0.001)


async def _drain(worker: Worker, drain_s: float, hurry: asyncio.Event) -> None:
    """Drain for `drain_s`; a second signal makes the deadline now."""
    closing = asyncio.create_task(asyncio.to_thread(worker.close, drain_s))
    await _first_of(hurry.wait(), closing)
    if not closing.done():
        await asyncio.to_thread(worker.close, 0.0)
    await closing


async def _exit(server: LabServer, running: asyncio.Task[None]) -> None:
    """Let uvicorn write what is open and leave; a client that reads nothing is cut off."""
    server.should_exit = True
    await asyncio.wait({running}, timeout=WRITE_OUT_S)
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    await running


async def _first_of(event: Any, task: asyncio.Task[Any]) -> None:
    waiting = asyncio.ensure_future(event)
    try:
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


@contextlib.contextmanager
def _signals(stop: asyncio.Event, hurry: asyncio.Event, loading: Callable[[], bool]) -> Iterator[None]:
    """The first signal stops, the second hurries. In a thread other than the main one there is nothing to own."""
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if not stop.is_set():
            if loading():
                print("stopping once the engine has loaded; the same signal again ends it at once", file=sys.stderr)
            stop.set()
        elif loading():
            _end_now(number)
        else:
            hurry.set()

    owned = []
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(number, on_signal, number)
            owned.append(number)
    try:
        yield
    finally:
        for number in owned:
            loop.remove_signal_handler(number)


def _end_now(number: signal.Signals) -> None:
    """No request is open and no log begun: the other ranks are killed, and Python's resource tracker frees the rest."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(128 + number)
