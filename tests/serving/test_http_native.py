"""The native routes on a real socket: lines in order, statuses, cancel, disconnect, slow reader, drain."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading

import msgspec
import pytest

from nanolab.errors import LabError
from nanolab.serving import Reason, State, WorkerLimits
from nanolab.serving.events import Finished, Step
from nanolab.serving.launch import EngineOptions, prepare
from nanolab.serving.responses import SendTimeout
from nanolab.serving.server import bind
from nanolab.serving.service import ServerSettings
from nanolab.serving.simulated import SimulatedConfig, SimulatedHooks, simulated_tokens

from .helpers import WAIT_S, Gate, check_lives
from .live import Live, live_server


def test_generate_sends_accepted_then_events_then_one_terminal_line() -> None:
    async def main() -> None:
        async with live_server() as live:
            lines = await live.generate(request_id="r1", prompt_token_ids=[1, 2, 3], max_tokens=4)
        assert [line["event"] for line in lines] == ["accepted", "admitted", *["token"] * 4, "finished"]
        assert [line["token"] for line in lines[2:-1]] == simulated_tokens([1, 2, 3], 4)
        assert all("text" not in line for line in lines)
        assert {line["request_id"] for line in lines} == {"r1"}
        assert lines[0]["prompt_tokens"] == 3
        assert lines[-1]["reason"] == "length"
        assert lines[-1]["output_tokens"] == 4

    asyncio.run(main())


def test_a_text_prompt_brings_text() -> None:
    async def main() -> None:
        async with live_server() as live:
            lines = await live.generate(prompt="hello", max_tokens=5)
        text = "".join(line.get("text", "") for line in lines)
        assert text == bytes(simulated_tokens(list(b"hello"), 5)).decode()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/generate", b"{", 400, "not valid JSON"),
        ("/generate", b"[1]", 400, "must be a JSON object, not list"),
        ("/generate", b"\xff\xfe{}", 400, "not valid JSON"),
        ("/generate", b"[" * 100_000, 400, "nested too deeply"),
        ("/generate", b'{"prompt": "a", "temperature": 1e999}', 400, "out of range"),
        ("/generate", b'{"prompt": "a", "temperature": NaN}', 400, "not valid JSON"),
        ("/generate", {}, 400, "exactly one of prompt and prompt_token_ids"),
        ("/generate", {"prompt": "a", "prompt_token_ids": [1]}, 400, "exactly one of"),
        ("/generate", {"prompt": "a", "max_tokens": "4"}, 400, "Expected `int`, got `str`"),
        ("/generate", {"prompt": "a", "max_tokens": True}, 400, "Expected `int`, got `bool`"),
        ("/generate", {"prompt": "", "max_tokens": 4}, 400, "prompt is empty"),
        ("/generate", {"prompt_token_ids": [1, 999]}, 400, "token id 999 is outside the vocabulary"),
        ("/generate", {"prompt": "a", "max_tokens": 5000}, 400, "more than the context of 1024"),
        ("/cancel", {}, 400, "missing required field `request_id`"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "is not served here"),
        ("/nowhere", {}, 404, "Not Found"),
        ("/health", {}, 405, "Method Not Allowed"),
        ("/generate", b'{"prompt": "' + b"a" * 4096 + b'"}', 413, "the limit is 2048"),
    ],
)
def test_bad_requests_have_one_error_shape(path: str, body: object, status: int, says: str) -> None:
    async def main() -> None:
        limit = 200_000 if isinstance(body, bytes) and len(body) > 50_000 else 2048
        async with live_server(settings=ServerSettings(max_body_bytes=limit)) as live:
            got, answer = await live.post(path, body)
            assert (got, set(answer["error"])) == (status, {"message", "type", "param", "code"})
            assert says in answer["error"]["message"]
            assert live.events == []

    asyncio.run(main())


def test_queue_full_is_429_with_retry_after_and_loses_nothing_accepted() -> None:
    gate = Gate()

    async def main() -> None:
        limits = WorkerLimits(max_active=1, max_queued=2)
        async with live_server(hooks=SimulatedHooks(in_step=gate.hook), limits=limits) as live:
            kept = [asyncio.create_task(live.generate(request_id="active", prompt="a", max_tokens=3))]
            await asyncio.to_thread(gate.arrived)
            for name in ("q0", "q1"):
                kept.append(asyncio.create_task(live.generate(request_id=name, prompt=name, max_tokens=3)))
            await live.until(lambda: live.worker.queue_lengths == (2, 1))
            async with live.http.post(
                live.url + "/generate", data=b'{"prompt": "x", "request_id": "over"}'
            ) as response:
                assert response.status == 429
                assert response.headers["retry-after"] == "1"
                assert "queue holds 2 of 2" in (await response.text())
            gate.open()
            answers = await asyncio.gather(*kept)
        assert all(lines[-1]["reason"] == "length" for lines in answers)
        check_lives(live.events)

    asyncio.run(main())


def test_duplicate_id_is_409() -> None:
    gate = Gate()

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(in_step=gate.hook)) as live:
            first = asyncio.create_task(live.generate(request_id="same", prompt="a", max_tokens=2))
            await asyncio.to_thread(gate.arrived)
            status, answer = await live.post("/generate", {"prompt": "b", "request_id": "same"})
            assert status == 409
            assert "in use" in answer["error"]["message"]
            gate.open()
            assert (await first)[-1]["reason"] == "length"
            assert (await live.generate(request_id="same", prompt="b", max_tokens=2))[-1]["reason"] == "length"

    asyncio.run(main())


def test_cancel_is_idempotent_and_says_what_happened() -> None:
    gate = Gate()

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(after_step=gate.hook)) as live:
            running = asyncio.create_task(live.generate(request_id="r", prompt="a", max_tokens=900))
            await asyncio.to_thread(gate.arrived)
            answers = [asyncio.create_task(live.post("/cancel", {"request_id": "r"})) for _ in range(2)]
            await live.until(lambda: len(live.worker._open["r"].answers) == 2)
            gate.open()
            assert [(await answer)[1]["result"] for answer in answers] == ["cancelled", "cancelled"]
            lines = await running
            assert (lines[-1]["reason"], lines[-1]["output_tokens"]) == ("cancelled", len(lines) - 3)
            assert (await live.post("/cancel", {"request_id": "r"}))[1]["result"] == "already_finished"
            assert (await live.post("/cancel", {"request_id": "never"}))[1]["result"] == "unknown"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "stream"), [("/generate", True), ("/v1/completions", True), ("/v1/completions", False)]
)
def test_a_disconnect_cancels_the_request_and_no_other(path: str, stream: bool) -> None:
    gate = Gate()

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(in_step=gate.hook)) as live:
            other = asyncio.create_task(live.generate(request_id="other", prompt="stay", max_tokens=20))
            await asyncio.to_thread(gate.arrived)
            body = {"prompt": "leave", "max_tokens": 900, "stream": stream, "ignore_eos": True}
            leaving = asyncio.create_task(live.http.post(live.url + path, data=msgspec.json.encode(body)))
            await live.until(lambda: live.worker.queue_lengths == (1, 1))
            for _ in range(3):  # until the request is in the engine and, when it streams, has produced something
                gate.release()
                await asyncio.to_thread(gate.arrived)
            if stream:
                response = await leaving
                response.close()
            else:
                leaving.cancel()
            await live.until(lambda: any(t.release_reason for t in list(live.worker._open.values())))
            gate.open()
            lines = await other
            assert [line["token"] for line in lines if line["event"] == "token"] == simulated_tokens(list(b"stay"), 20)
            ends = [event for event in live.events if isinstance(event, Finished) and event.request_id != "other"]
            assert [(end.reason, end.message) for end in ends] == [(Reason.CANCELLED, "the client disconnected")]
            check_lives(live.events)

    asyncio.run(main())


def test_a_client_that_reads_nothing_is_a_slow_consumer_and_slows_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small socket buffers on both sides fill up; the send times out; the other request is complete."""

    def bind_small(host: str, port: int) -> socket.socket:
        bound = bind(host, port)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # accepted connections inherit it
        return bound

    monkeypatch.setattr("nanolab.serving.server.bind", bind_small)

    async def main() -> Finished:
        settings = ServerSettings(send_timeout_s=0.2)
        limits = WorkerLimits(stream_capacity=100_000)
        config = SimulatedConfig(max_model_len=6000, step_seconds=0.001)
        async with live_server(settings=settings, limits=limits, config=config) as live:
            host, port = live.url.removeprefix("http://").split(":")
            stalled = socket.socket()
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect((host, int(port)))
            body = b'{"request_id": "stalled", "prompt": "s", "max_tokens": 5000}'
            stalled.sendall(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            lines = await live.generate(request_id="reads", prompt="r", max_tokens=200)
            assert lines[-1]["reason"] == "length"
            await live.until(lambda: any(isinstance(e, Finished) and e.request_id == "stalled" for e in live.events))
            stalled.close()
        return next(e for e in live.events if isinstance(e, Finished) and e.request_id == "stalled")

    end = asyncio.run(main())
    assert (end.reason, end.message) == (Reason.SLOW_CONSUMER, "nothing was read for 0.2 s")


def test_a_send_may_take_its_seconds_and_the_time_between_sends_is_free() -> None:
    async def main() -> list[str]:
        loop, seen = asyncio.get_running_loop(), []
        try:
            async with SendTimeout(0.05) as limit:
                await asyncio.sleep(0.12)  # nothing is being sent: longer than a send may take
                for _ in range(4):  # four sends of 20 ms: together longer than one may take
                    limit.begin()
                    await asyncio.sleep(0.02)
                    limit.end()
                seen.append("sent")
                limit.begin()
                began = loop.time()
                await asyncio.sleep(WAIT_S)
        except TimeoutError:
            seen.append("timed out in time" if 0.04 < loop.time() - began < 5 else "timed out at the wrong time")
        return seen

    assert asyncio.run(main()) == ["sent", "timed out in time"]


def test_the_simulated_engine_has_blocks_for_every_request_of_a_step() -> None:
    engine = prepare(EngineOptions(simulated=True, max_model_len=864, batch_seqs=256)).create()
    assert engine.num_blocks * engine.block_size >= 256 * 864


def test_engine_failure_ends_streams_and_health_says_why() -> None:
    gate = Gate()

    def fault(engine: object) -> None:
        gate.hook(engine)  # type: ignore[arg-type]
        raise RuntimeError("injected fault")

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(in_step=fault)) as live:
            streams = [asyncio.create_task(live.generate(prompt=f"p{index}", max_tokens=9)) for index in range(3)]
            await live.until(lambda: sum(live.worker.queue_lengths) == 3)
            gate.open()
            for lines in await asyncio.gather(*streams):
                assert lines[-1]["reason"] == "error"
                assert "injected fault" in lines[-1]["message"]
            status, answer = await live.get("/health")
            assert (status, answer["status"], answer["reason"]) == (503, "dead", "RuntimeError: injected fault")
            async with live.http.post(live.url + "/generate", data=b'{"prompt": "x"}') as response:
                assert (response.status, response.headers["retry-after"]) == (503, "1")

    asyncio.run(main())


def test_an_engine_that_breaks_while_idle_is_noticed_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanolab.serving.worker.IDLE_CHECK_S", 0.01)
    is_broken = threading.Event()

    def check(engine: object) -> None:
        if is_broken.is_set():
            raise ChildProcessError("rank 1 ended with exit code -9")

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(on_check=check)) as live:
            assert (await live.get("/health"))[0] == 200
            is_broken.set()
            await live.until(lambda: live.worker.state is State.DEAD)
            status, health = await live.get("/health")
            assert (status, health["status"]) == (503, "dead")
            assert health["reason"] == "ChildProcessError: rank 1 ended with exit code -9"

    asyncio.run(main())


def test_kv_usage_falls_with_a_cancel_and_not_with_the_next_step() -> None:
    """The prompt holds 4 of 8 blocks when it is cancelled, and no request is left that would bring a step."""
    gate = Gate()

    async def kv_usage(live: Live) -> str:
        async with live.http.get(live.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        return next(line.split()[-1] for line in lines if line.startswith("vllm:kv_cache_usage_perc"))

    async def main() -> None:
        config = SimulatedConfig(num_kvcache_blocks=8)
        async with live_server(config=config, hooks=SimulatedHooks(after_step=gate.hook)) as live:
            answer = asyncio.create_task(live.generate(request_id="r", prompt_token_ids=[1] * 64, max_tokens=60))
            await asyncio.to_thread(gate.arrived)  # in the first step
            gate.release()
            await asyncio.to_thread(gate.arrived)  # in the second: the first one's usage can be read
            assert await kv_usage(live) == "0.5"
            cancelled = asyncio.create_task(live.post("/cancel", {"request_id": "r"}))
            await live.until(lambda: bool(live.worker._releases))
            gate.open()
            assert (await cancelled)[1]["result"] == "cancelled"
            assert await kv_usage(live) == "0.0"
            assert (await answer)[-1]["reason"] == "cancelled"
        steps = [event for event in live.events if isinstance(event, Step)]
        assert steps[-1].free_blocks < 8  # the log's last step was before the cancel

    asyncio.run(main())


def test_draining_ends_open_streams_and_refuses_new_ones() -> None:
    gate = Gate()

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(in_step=gate.hook), drain_s=WAIT_S) as live:
            running = asyncio.create_task(live.generate(prompt="a", max_tokens=30))
            await asyncio.to_thread(gate.arrived)
            live.stop.set()
            await live.until(lambda: live.worker.state is State.DRAINING)
            status, answer = await live.post("/generate", {"prompt": "late"})
            assert status == 503
            assert "draining" in answer["error"]["message"]
            assert (await live.get("/health"))[0] == 503
            gate.open()
            assert (await running)[-1]["reason"] == "length"

    asyncio.run(main())


def test_a_stopped_server_leaves_no_thread_and_no_socket() -> None:
    """In this very process: 50 open streams at the stop, and afterwards what was there before."""

    def sockets() -> int:
        links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
        return sum(link.startswith("socket:") for link in links)

    async def main() -> None:
        limits = WorkerLimits(max_active=50)
        config = SimulatedConfig(step_seconds=0.002)
        async with live_server(config=config, limits=limits, drain_s=0.1) as live:
            streams = [asyncio.create_task(live.generate(prompt="x", max_tokens=900)) for _ in range(50)]
            await live.until(lambda: live.worker.queue_lengths[1] == 50)
            live.stop.set()
            for lines in await asyncio.gather(*streams):
                assert lines[-1]["reason"] == "shutdown"

    before = {thread.name for thread in threading.enumerate()}, sockets()
    asyncio.run(main())
    gc.collect()
    assert ({thread.name for thread in threading.enumerate()}, sockets()) == before


def test_health_models_tokenize_and_metrics() -> None:
    async def main() -> None:
        async with live_server(facts={"policy": "balanced", "tensor_parallel_size": 1}) as live:
            await live.generate(prompt="a", max_tokens=4)
            status, health = await live.get("/health")
            assert (status, health["status"], health["policy"]) == (200, "ok", "balanced")
            assert health["engine"]["max_model_len"] == 1024
            models = (await live.get("/v1/models"))[1]["data"]
            assert [(model["id"], model["root"], model["max_model_len"]) for model in models] == [
                ("simulated", "model", 1024)
            ]
            assert (await live.get("/v1/models/simulated"))[0] == 200
            assert (await live.get("/v1/models/other"))[0] == 404
            assert (await live.post("/tokenize", {"prompt": "Hé"}))[1] == {
                "count": 3,
                "max_model_len": 1024,
                "tokens": [72, 195, 169],
            }
            async with live.http.get(live.url + "/metrics") as response:
                text = await response.text()
        for line in (
            'vllm:generation_tokens_total{model_name="simulated"} 4.0',
            'vllm:prompt_tokens_total{model_name="simulated"} 1.0',
            'vllm:request_success_total{finished_reason="length",model_name="simulated"} 1.0',
            'vllm:time_to_first_token_seconds_count{model_name="simulated"} 1.0',
            'vllm:inter_token_latency_seconds_count{model_name="simulated"} 3.0',
            'vllm:num_requests_running{model_name="simulated"} 0.0',
            'vllm:kv_cache_usage_perc{model_name="simulated"} 0.0',
        ):
            assert line in text

    asyncio.run(main())


def test_port_in_use_is_a_clear_error_before_the_engine_loads() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LabError, match=f"port {port} on 127.0.0.1 is in use; stop that server or choose"):
            bind("127.0.0.1", port)


def test_connections_send_small_writes_at_once() -> None:
    """With Nagle's algorithm on, every second token waits 40 ms for a delayed acknowledgement."""

    async def main() -> None:
        transports: list[asyncio.Transport] = []

        class Keep(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transports.append(transport)  # type: ignore[arg-type]

        with bind("127.0.0.1", 0) as bound:
            server = await asyncio.get_running_loop().create_server(Keep, sock=bound)
            async with server:
                _, writer = await asyncio.open_connection(*bound.getsockname())
                await asyncio.sleep(0)
                while not transports:
                    await asyncio.sleep(0.001)
                accepted = transports[0].get_extra_info("socket")
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                writer.close()
                transports[0].close()

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_a_body_that_never_arrives_is_408() -> None:
    async def main() -> None:
        async with live_server(settings=ServerSettings(body_timeout_s=0.1)) as live:
            host, port = live.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            answer = await asyncio.wait_for(reader.read(), WAIT_S)
            assert answer.startswith(b"HTTP/1.1 408")
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


def test_64_streams_at_once_each_get_their_own_tokens() -> None:
    async def main() -> None:
        async with live_server(limits=WorkerLimits(max_active=64), config=SimulatedConfig(max_num_seqs=64)) as live:
            answers = await asyncio.gather(
                *(live.generate(request_id=f"r{i}", prompt=f"p{i}", max_tokens=8, text=False) for i in range(64))
            )
        for index, lines in enumerate(answers):
            tokens = [line["token"] for line in lines if line["event"] == "token"]
            assert tokens == simulated_tokens(list(f"p{index}".encode()), 8)
        check_lives(live.events)

    asyncio.run(main())
