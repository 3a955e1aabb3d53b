"""1,000 random lives, seeded: submit, cancel, disconnect, stall, finish. Afterwards every block is back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from nanolab.serving import CancelAnswer, Reason, Worker, WorkerLimits
from nanolab.serving.engine import CreateEngine
from nanolab.serving.events import Event, Finished, Token
from nanolab.serving.requests import QueueFull
from nanolab.serving.simulated import SimulatedConfig, SimulatedEngine
from nanolab.sources import resolve

from .helpers import WAIT_S, check_lives, request
from .live import Live, live_server

ENDS = ("finish", "cancel at once", "cancel later", "cancel from a thread", "stall", "walk away")
CAPACITY = 24


async def one_life(worker: Worker, index: int, seed: int) -> str:
    """Submit and then do one thing to the request; returns what was done."""
    rng = Random(seed * 100_003 + index)
    act = ENDS[int(rng.random() * len(ENDS))]
    max_tokens = 100 if act == "stall" else 1 + int(rng.random() * 40)
    prompt = [int(rng.random() * 256) for _ in range(1 + int(rng.random() * 60))]
    # ids are used again while others still run
    wanted = request(f"life-{index % 400}", prompt, max_tokens, ignore_eos=True)
    try:
        stream = worker.submit(wanted)
    except QueueFull:
        return "queue full"
    if act == "cancel at once":
        await asyncio.wrap_future(worker.cancel(wanted.request_id))
    elif act == "cancel from a thread":
        await asyncio.to_thread(worker.cancel, wanted.request_id)
    elif act in ("cancel later", "walk away"):
        seen = 0
        while seen < max_tokens // 2 and stream.finished is None:
            seen += sum(isinstance(event, Token) for event in await stream.take())
        answer = worker.cancel(wanted.request_id)
        if act == "cancel later":
            assert await asyncio.wrap_future(answer) in (CancelAnswer.CANCELLED, CancelAnswer.ALREADY_FINISHED)
    elif act == "stall":
        while stream.finished is None:
            await asyncio.sleep(0.001)
        assert stream.finished.reason is Reason.SLOW_CONSUMER
        return act
    while await stream.take():  # a second reader of the same id cannot start before this one's end was delivered
        pass
    return act


async def many_lives(create: CreateEngine, lives: int, seed: int) -> tuple[list[Event], int, int]:
    """(all events, free blocks at the end, blocks)"""
    events: list[Event] = []
    limits = WorkerLimits(max_active=12, max_queued=64, stream_capacity=CAPACITY)
    worker = Worker(create, limits, loop=asyncio.get_running_loop(), listeners=(events.extend,))
    facts = await asyncio.to_thread(worker.start)
    width = asyncio.Semaphore(40)  # lives at once; fewer than the 400 ids, so an id is free when its turn comes

    async def bounded(index: int) -> str:
        async with width:
            return await one_life(worker, index, seed)

    acts = await asyncio.gather(*(bounded(index) for index in range(lives)))
    assert {act for act in acts if act != "queue full"} == set(ENDS)
    await asyncio.wrap_future(worker.call(lambda engine: None))
    free = await asyncio.wrap_future(worker.call(lambda engine: engine.free_blocks))
    assert worker.queue_lengths == (0, 0)
    assert worker._open == {}
    await asyncio.to_thread(worker.close, WAIT_S)
    return events, free, facts.num_blocks


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_thousand_random_lives_give_every_block_back(seed: int) -> None:
    """40 blocks of 8 for 12 active requests of up to 160 tokens: preemption happens, too."""
    config = SimulatedConfig(
        kvcache_block_size=8, num_kvcache_blocks=40, max_num_seqs=6, max_num_batched_tokens=32, step_seconds=0.0002
    )
    events, free, blocks = asyncio.run(many_lives(lambda: SimulatedEngine(config), 1000, seed))
    assert (free, blocks) == (40, 40)
    check_lives(events)
    reasons = {event.reason for event in events if isinstance(event, Finished)}
    assert {Reason.LENGTH, Reason.CANCELLED, Reason.SLOW_CONSUMER} <= reasons


@pytest.mark.slow
def test_random_lives_on_the_real_engine(tiny_model: Path) -> None:
    source = resolve(None)

    def create():  # type: ignore[no-untyped-def]
        return source.create_engine(
            tiny_model,
            max_model_len=256,
            max_num_batched_tokens=128,
            max_num_seqs=12,
            kvcache_block_size=16,
            num_kvcache_blocks=80,
            attention_backend="torch",
            device="cpu",
            enforce_eager=True,
        )

    events, free, blocks = asyncio.run(many_lives(create, 120, 7))
    assert (free, blocks) == (80, 80)
    check_lives(events)


def test_three_hundred_random_lives_over_http() -> None:
    """The same over a socket: finish, /cancel, disconnect in mid-stream; the server stays healthy."""
    config = SimulatedConfig(kvcache_block_size=8, num_kvcache_blocks=64, step_seconds=0.0005)

    async def life(live: Live, index: int) -> None:
        rng = Random(index)
        body = {"request_id": f"h{index}", "prompt_token_ids": [1 + index % 200] * 9, "max_tokens": 1 + index % 50}
        if rng.random() < 0.4:
            await live.generate(**body)
            return
        async with live.http.post(live.url + "/generate", json=body) as response:
            for _ in range(1 + int(rng.random() * 5)):
                await response.content.readline()
            if rng.random() < 0.5:
                await live.post("/cancel", {"request_id": body["request_id"]})
                await response.read()
            else:
                response.close()

    async def main() -> None:
        limits = WorkerLimits(max_active=16, max_queued=300)
        async with live_server(config=config, limits=limits) as live:
            await asyncio.gather(*(life(live, index) for index in range(300)))
            await live.until(lambda: not live.worker._open)
            free = await asyncio.wrap_future(live.worker.call(lambda engine: engine.free_blocks))
            assert free == 64
            assert (await live.get("/health"))[0] == 200
        check_lives(live.events)
        assert sum(isinstance(event, Finished) for event in live.events) == 300

    asyncio.run(main())
