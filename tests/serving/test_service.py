"""Where one request could cost another: ids used again before an end is delivered, chat templates, a full disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from nanolab.errors import LabError
from nanolab.serving import SamplingSpec, Worker
from nanolab.serving.eventlog import EventLog
from nanolab.serving.events import Reason
from nanolab.serving.launch import run_header
from nanolab.serving.lifecycle import WorkerLimits
from nanolab.serving.metrics import Metrics
from nanolab.serving.responses import EventResponse
from nanolab.serving.server import bind
from nanolab.serving.service import Service
from nanolab.serving.simulated import ByteTokenizer, SimulatedEngine

from .helpers import until
from .live import live_server


def test_releasing_an_old_stream_leaves_the_new_request_of_its_id_alone() -> None:
    """The id is free once the owner has handed the end over, which may be before the event loop delivers it."""

    async def main() -> Reason:
        worker = Worker(SimulatedEngine, loop=asyncio.get_running_loop())
        await asyncio.to_thread(worker.start)
        service = Service(worker, ByteTokenizer(), "m", "m", Metrics("m"))
        try:
            old = service.submit("x", [1], SamplingSpec(max_tokens=1))
            until(lambda: "x" not in worker._open)  # holds the event loop: nothing is delivered meanwhile
            assert old.finished is None
            new = service.submit("x", [2], SamplingSpec(max_tokens=200))
            service.release(old, message="the client disconnected")
            async for _ in new:
                pass
            assert new.finished is not None
            return new.finished.reason
        finally:
            await asyncio.to_thread(worker.close)
            service.close()

    assert asyncio.run(main()) is Reason.LENGTH


@pytest.mark.parametrize("name", ["chat_template", "tools", "documents", "tokenize", "return_dict"])
def test_chat_template_options_are_the_templates_own_variables(name: str) -> None:
    """A client's own template would be a program that runs in the server."""

    async def main() -> tuple[int, Any]:
        async with live_server() as live:
            body = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {name: "x"}}
            return await live.post("/v1/chat/completions", body)

    status, answer = asyncio.run(main())
    assert (status, answer["error"]["message"]) == (400, f"chat_template_kwargs may not set {name}")


def test_a_chat_template_at_work_does_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow_template(self: ByteTokenizer, messages: Any, **options: Any) -> str:
        entered.set()
        assert leave.wait(2), "nobody could ask for /health meanwhile"
        return "<assistant>"

    monkeypatch.setattr(ByteTokenizer, "apply_chat_template", slow_template)

    async def main() -> int:
        async with live_server() as live:
            body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
            asking = asyncio.create_task(live.post("/v1/chat/completions", body))
            await live.until(entered.is_set)
            assert (await live.get("/health"))[0] == 200
            leave.set()
            return (await asking)[0]

    assert asyncio.run(main()) == 200


@pytest.mark.parametrize("stuck", ["http.response.start", "last"])
def test_every_send_has_a_timeout(stuck: str) -> None:
    calls: list[str] = []

    async def chunks() -> Any:
        yield b"a"

    async def send(message: Any) -> None:
        last = message["type"] == "http.response.body" and not message["more_body"]
        if stuck == message["type"] or (stuck == "last" and last):
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def main() -> None:
        response = EventResponse(
            chunks(),
            "text/plain",
            send_timeout_s=0.05,
            on_stall=lambda: calls.append("stall"),
            on_exit=lambda: calls.append("exit"),
        )
        await asyncio.wait_for(response({}, receive, send), 5)

    asyncio.run(main())
    assert calls == ["stall", "exit"]


@pytest.mark.parametrize("room", [0, 400])
def test_a_full_disk_is_a_clear_error(room: int, tmp_path: Path) -> None:
    """The file system takes `room` bytes and no more."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = EventLog(tmp_path / "log.jsonl", run_header(evidence=None, config={"filler": "x" * 1000}))
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        log.write([])
        with pytest.raises(LabError, match=r"log\.jsonl is not complete: File too large; free some space"):
            log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limits", [{"max_active": 0}, {"max_queued": 0}, {"stream_capacity": -1}])
def test_limits_under_which_nothing_could_ever_run_are_refused(limits: dict[str, int]) -> None:
    (name,) = limits
    with pytest.raises(LabError, match=f"{name} is .*; it must be at least 1"):
        WorkerLimits(**limits)


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_port_that_cannot_exist_is_named(port: int) -> None:
    with pytest.raises(LabError, match=f"cannot listen on 127.0.0.1:{port}"):
        bind("127.0.0.1", port)
