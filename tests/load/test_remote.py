"""Load over real sockets: what is recorded, when a request is retried, and what a broken replica leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from serving.live import live_server

from nanolab.errors import LabError
from nanolab.load import remote
from nanolab.load.router import Router
from nanolab.load.runs import LoadSummary, RemoteOptions, load_remote, run_remote
from nanolab.load.trace import read_trace, write_trace
from nanolab.serving import Reason, WorkerLimits
from nanolab.serving.eventlog import Log, read_log
from nanolab.serving.events import Chunk, Ended, Event, Finished, Retried, Sent, now_ns
from nanolab.serving.gate import Gate
from nanolab.serving.simulated import SimulatedConfig, SimulatedHooks

from .helpers import HEAD, by_request, check_client_lives, chunk, client_for, stand_in, trace_request

TOKEN = b'{"event":"token","token":97,"index":1}\n'
FINISHED = b'{"event":"finished","reason":"length","output_tokens":1}\n'


@pytest.mark.parametrize("api", ["native", "openai"])
def test_everything_a_client_sees_is_recorded(api: str) -> None:
    requests = [trace_request(f"r{index}", at_ms=index * 5, output=7, request_class="short") for index in range(6)]

    async def main() -> None:
        async with live_server(config=SimulatedConfig(step_seconds=0.002)) as live:
            async with client_for([live.url], api=api) as (client, events):
                await client.run(requests)
            served = [event for event in live.events if isinstance(event, Finished)]
        check_client_lives(events)
        assert sorted(by_request(events)) == [f"r{index}" for index in range(6)]
        for life in by_request(events).values():
            sent, end = life[0], life[-1]
            assert isinstance(sent, Sent)
            assert isinstance(end, Ended)
            assert sent.planned_ns <= sent.t_ns
            assert sent.request_class == "short"
            assert (end.reason, end.output_tokens) == (Reason.LENGTH, 7)
            assert sum(event.tokens or 0 for event in life if isinstance(event, Chunk)) == 7
        assert [end.output_tokens for end in served] == [7] * 6

    asyncio.run(main())


def test_arrivals_are_open_loop() -> None:
    """With the engine held, no answer can come; all requests are sent nevertheless, each at its time."""
    gate = Gate()
    requests = [trace_request(f"r{index}", at_ms=index * 10) for index in range(5)]

    async def main() -> None:
        async with (
            live_server(hooks=SimulatedHooks(in_step=gate.hook)) as live,
            client_for([live.url]) as (client, events),
        ):
            running = asyncio.create_task(client.run(requests))
            await live.until(lambda: sum(isinstance(event, Sent) for event in events) == 5)
            assert not any(isinstance(event, Chunk | Ended) for event in events)
            gate.open()
            await running
        planned = [event.planned_ns for event in events if isinstance(event, Sent)]
        assert [round((at - planned[0]) / 1e6, 3) for at in planned] == [0, 10, 20, 30, 40]

    asyncio.run(main())


def test_two_replicas_share_the_requests() -> None:
    async def main() -> None:
        async with live_server() as one, live_server() as two, client_for([one.url, two.url]) as (client, events):
            await client.run([trace_request(f"r{index}") for index in range(8)])
            for live in (one, two):
                assert sum(isinstance(event, Finished) for event in live.events) == 4
        routes = [event.route["replica"] for event in events if isinstance(event, Sent) and event.route]
        assert routes == [0, 1] * 4

    asyncio.run(main())


def test_a_draining_replica_is_skipped_before_the_first_byte() -> None:
    gate = Gate()

    async def main() -> None:
        hooks = SimulatedHooks(in_step=gate.hook)
        async with live_server(hooks=hooks, drain_s=20) as draining, live_server() as good:
            held = asyncio.create_task(draining.generate(prompt="held", max_tokens=2))
            await asyncio.to_thread(gate.arrived)
            draining.stop.set()
            await draining.until(lambda: draining.worker.state.value == "draining")
            async with client_for([draining.url, good.url]) as (client, events):
                await client.run([trace_request("a"), trace_request("b")])
            gate.open()
            await held
        ends = [event for event in events if isinstance(event, Ended)]
        assert [end.reason for end in ends] == [Reason.LENGTH] * 2
        retried = [event for event in events if isinstance(event, Retried)]
        assert [event.endpoint for event in retried] == [draining.url]
        check_client_lives(events)

    asyncio.run(main())


def test_retry_only_before_the_first_byte() -> None:
    """One replica hangs up at once, the other after a token: the first request is retried, the second ends as error."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        return

    async def die_after_a_token(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(TOKEN))
        await writer.drain()

    async def main() -> None:
        async with (
            stand_in(hang_up) as first,
            stand_in(die_after_a_token) as second,
            client_for([first, second]) as (client, events),
        ):
            await client.run([trace_request("r")])
            assert len(client.deaths) == 2
        life = by_request(events)["r"]
        assert [type(event).__name__ for event in life] == ["Sent", "Retried", "Chunk", "Ended"]
        end = life[-1]
        assert isinstance(end, Ended)
        assert (end.reason, end.output_tokens) == (Reason.ERROR, 1)
        assert "connection broke" in (end.message or "")

    asyncio.run(main())


def test_a_stream_without_a_terminal_line_is_an_error_with_its_tokens() -> None:
    async def no_terminal(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(TOKEN) + b"0\r\n\r\n")
        await writer.drain()

    async def main() -> None:
        async with stand_in(no_terminal) as url, client_for([url]) as (client, events):
            await client.run([trace_request("r")])
        end = events[-1]
        assert isinstance(end, Ended)
        assert (end.reason, end.output_tokens) == (Reason.ERROR, 1)
        assert "without a terminal" in (end.message or "")

    asyncio.run(main())


def test_queue_full_is_recorded_as_rejected_not_retried() -> None:
    gate = Gate()

    async def main() -> None:
        limits = WorkerLimits(max_active=1, max_queued=1)
        hooks, requests = SimulatedHooks(in_step=gate.hook), [trace_request(f"r{i}", at_ms=20 * i) for i in range(4)]
        async with live_server(hooks=hooks, limits=limits) as live, client_for([live.url]) as (client, events):
            running = asyncio.create_task(client.run(requests))
            await live.until(lambda: sum(isinstance(event, Ended) for event in events) == 2)
            gate.open()
            await running
        ends = {event.request_id: (event.reason, event.status) for event in events if isinstance(event, Ended)}
        assert ends == {
            "r0": (Reason.LENGTH, 200),
            "r1": (Reason.LENGTH, 200),
            "r2": (Reason.REJECTED, 429),
            "r3": (Reason.REJECTED, 429),
        }

    asyncio.run(main())


@pytest.mark.parametrize("api", ["native", "openai"])
def test_cancel_after_tokens(api: str) -> None:
    async def main() -> None:
        async with live_server(config=SimulatedConfig(step_seconds=0.001)) as live:
            async with client_for([live.url], api=api) as (client, events):
                await client.run([trace_request("r", output=900, cancel_after_tokens=5)])
            await live.until(lambda: any(isinstance(event, Finished) for event in live.events))
            served = next(event for event in live.events if isinstance(event, Finished))
        end = events[-1]
        assert isinstance(end, Ended)
        assert end.reason is Reason.CANCELLED
        assert served.reason is Reason.CANCELLED
        assert 5 <= (end.output_tokens or 0) < 900

    asyncio.run(main())


def test_a_closed_client_closes_the_upstream_response() -> None:
    gate = Gate()

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(before_step=gate.hook)) as live:
            async with client_for([live.url]) as (client, events):
                going = asyncio.create_task(client.send_one(trace_request("r", output=900), now_ns()))
                for _ in range(3):
                    await asyncio.to_thread(gate.arrived)
                    gate.release()
                await live.until(lambda: any(isinstance(event, Chunk) for event in events))
                going.cancel()
                await asyncio.gather(going, return_exceptions=True)
                gate.open()
                await live.until(lambda: any(isinstance(event, Finished) for event in live.events))
            end = next(event for event in live.events if isinstance(event, Finished))
            assert (end.reason, end.message) == (Reason.CANCELLED, "the client disconnected")

    asyncio.run(main())


def test_a_replica_that_dies_in_mid_run_leaves_a_log_marked_partial(tmp_path: Path) -> None:
    """Its open request ends as error, the others go to the replica that is left, and every request has its end."""

    async def die_after_a_token(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(TOKEN))
        await writer.drain()

    trace = tmp_path / "trace.jsonl"
    write_trace(trace, [trace_request(f"r{index}", at_ms=index * 30) for index in range(6)])

    async def main() -> tuple[LoadSummary, Log]:
        async with stand_in(die_after_a_token) as dying, live_server() as good:
            options = RemoteOptions(trace, tmp_path / "log.jsonl", (dying, good.url), warmup=0)
            summary = await load_remote(options, read_trace(trace), lambda **facts: None)
        return summary, read_log(options.out)

    summary, log = asyncio.run(main())
    assert summary.ends == {"error": 1, "length": 5}
    assert log.is_partial
    assert "the run ended early: replica" in log.problems[0]
    check_client_lives(log.events)
    assert len(by_request(log.events)) == 6
    assert any(note.startswith("replica") for note in summary.notes)


def test_policies_that_a_remote_does_not_reveal_are_null(tmp_path: Path) -> None:
    async def fine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(TOKEN + FINISHED) + b"0\r\n\r\n")
        await writer.drain()

    trace = tmp_path / "trace.jsonl"
    write_trace(trace, [trace_request("r0")])

    async def main() -> None:
        facts = {"policy": "balanced", "tensor_parallel_size": 2, "execution": "eager", "evidence": "cpu-simulation"}
        async with stand_in(fine) as silent, live_server(facts=facts) as talking:
            for name, urls in (("silent", (silent,)), ("talking", (talking.url,)), ("both", (silent, talking.url))):
                options = RemoteOptions(trace, tmp_path / f"{name}.jsonl", urls, warmup=0)
                await load_remote(options, read_trace(trace), lambda **facts: None)

    asyncio.run(main())
    headers = {name: read_log(tmp_path / f"{name}.jsonl").header for name in ("silent", "talking", "both")}
    names = ("policy", "tensor_parallel_size", "execution")
    assert [headers["silent"].config[name] for name in names] == [None, None, None]
    assert headers["silent"].evidence is None
    assert [headers["talking"].config[name] for name in names] == ["balanced", 2, "eager"]
    assert headers["both"].config["policy"] == [None, "balanced"]


def test_an_endpoint_that_is_down_is_a_clear_error(tmp_path: Path) -> None:
    trace = Path(__file__).resolve().parents[2] / "workloads" / "mixed.jsonl"
    options = RemoteOptions(trace, tmp_path / "log.jsonl", ("http://127.0.0.1:9",))
    with pytest.raises(LabError, match=r"endpoint http://127\.0\.0\.1:9 does not answer .*run\.py serve"):
        run_remote(options, lambda **facts: None)
    assert not (tmp_path / "log.jsonl").exists()


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Takes connections and never answers, like a server that was stopped with SIGSTOP."""
    done = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        done.set()
        server.close()


def test_an_endpoint_that_never_answers_is_named_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "HEALTH_TIMEOUT_S", 0.1, raising=False)

    async def main() -> None:
        async with asyncio.timeout(10), silent_server() as url, remote.connect([url], "native"):
            pass

    with pytest.raises(LabError, match="does not answer"):
        asyncio.run(main())


def test_a_replica_that_hangs_is_skipped_and_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "HEALTH_TIMEOUT_S", 0.1, raising=False)
    monkeypatch.setattr(remote, "HEALTH_EVERY_S", 0.01)

    async def main() -> str | None:
        async with asyncio.timeout(10), silent_server() as url, live_server() as good:
            replicas = [remote.Replica(url), remote.Replica(good.url, usable=False)]
            client = remote.RemoteClient(good.http, replicas, Router("round_robin", 2), "native", lambda events: None)
            watching = asyncio.create_task(client._watch_health())
            try:
                while [replica.usable for replica in replicas] != [False, True]:
                    await asyncio.sleep(0.01)
            finally:
                watching.cancel()
            return replicas[0].died

    assert "Timeout" in str(asyncio.run(main()))


def test_an_answer_with_an_unknown_reason_ends_as_an_error() -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(TOKEN + FINISHED.replace(b'"length"', b'"because"')) + b"0\r\n\r\n")
        await writer.drain()

    async def main() -> list[Event]:
        events: list[Event] = []
        async with stand_in(odd) as url, remote.connect([url], "native") as (http, replicas):
            await remote.RemoteClient(http, replicas, Router("round_robin", 1), "native", events.extend).run(
                [trace_request("r0")]
            )
        return events

    end = asyncio.run(main())[-1]
    assert isinstance(end, Ended)
    assert end.reason is Reason.ERROR
    assert "because" in str(end.message)
