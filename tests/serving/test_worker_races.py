"""Every race of a request's life, forced: the owner thread is held at a named point while the test acts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nanolab.serving import CancelAnswer, Reason, State, WorkerLimits
from nanolab.serving.events import Admitted, Step, Token
from nanolab.serving.requests import DuplicateRequest, InvalidRequest, NotServing, QueueFull
from nanolab.serving.simulated import SimulatedConfig, SimulatedEngine, SimulatedHooks

from .helpers import WAIT_S, Gate, Rig, check_lives, expected_tokens, request, tokens_of, until


def test_a_life_in_order_and_a_middle_chunk_without_token() -> None:
    """A prompt of 40 under a budget of 16 takes three chunks; only the last brings a token."""
    with Rig(config=SimulatedConfig(max_num_batched_tokens=16)) as rig:
        wanted = request("long", prompt=list(range(40)), max_tokens=3)
        stream = rig.worker.submit(wanted)
    assert tokens_of(stream.take_nowait()) == expected_tokens(wanted)
    steps = [event for event in rig.events if isinstance(event, Step)]
    assert [(step.phase, step.batch[0][1:4]) for step in steps] == [
        ("prefill", (40, 0, 16)),
        ("prefill", (40, 16, 16)),
        ("prefill", (40, 32, 8)),
        ("decode", (41, 40, 1)),
        ("decode", (42, 41, 1)),
    ]
    assert [event.step for event in rig.events if isinstance(event, Token)] == [3, 4, 5]
    check_lives(rig.events)


def test_requests_join_while_others_run_and_admitted_says_how_many_were_active() -> None:
    gate = Gate()
    with Rig(hooks=SimulatedHooks(in_step=gate.hook), gate=gate) as rig:
        first, second = request("first", max_tokens=6), request("second", max_tokens=2)
        one = rig.worker.submit(first)
        gate.arrived()  # `first` is being prefilled
        two = rig.worker.submit(second)
        gate.open()
    admitted = {event.request_id: event.active for event in rig.events if isinstance(event, Admitted)}
    assert admitted == {"first": 0, "second": 1}
    assert tokens_of(one.take_nowait()) == expected_tokens(first)
    assert tokens_of(two.take_nowait()) == expected_tokens(second)
    check_lives(rig.events)


def test_cancel_before_admission() -> None:
    gate = Gate()
    with Rig(WorkerLimits(max_active=1), hooks=SimulatedHooks(in_step=gate.hook), gate=gate) as rig:
        running = request("running", max_tokens=3)
        stream = rig.worker.submit(running)
        gate.arrived()
        rig.worker.submit(request("queued"))  # cannot be admitted: one active is the limit
        answer = rig.worker.cancel("queued")
        gate.open()
        assert answer.result(WAIT_S) == CancelAnswer.CANCELLED
    assert [type(event).__name__ for event in rig.life("queued")] == ["Submitted", "Finished"]
    assert rig.end("queued").reason is Reason.CANCELLED
    assert tokens_of(stream.take_nowait()) == expected_tokens(running)


def test_cancel_between_admission_and_the_first_step() -> None:
    """`late` is admitted in the round whose step is held; the budget of 8 went to `early`, so it has not run."""
    gate = Gate()
    config = SimulatedConfig(max_num_batched_tokens=8)
    with Rig(config=config, hooks=SimulatedHooks(in_step=gate.hook), gate=gate) as rig:
        rig.worker.submit(request("holder", prompt=[1], max_tokens=1))
        gate.arrived()
        rig.worker.submit(request("early", prompt=list(range(8)), max_tokens=2))
        rig.worker.submit(request("late", prompt=list(range(8)), max_tokens=2))
        gate.release()
        gate.arrived()
        late = rig.engine.waiting[-1]
        assert (late.num_cached_tokens, late.num_scheduled_tokens) == (0, 0)
        answer = rig.worker.cancel("late")
        gate.open()
        assert answer.result(WAIT_S) == CancelAnswer.CANCELLED
    assert [type(event).__name__ for event in rig.life("late")] == ["Submitted", "Admitted", "Finished"]
    assert rig.end("early").reason is Reason.LENGTH
    assert rig.engine.free_blocks == rig.engine.num_blocks


def test_cancel_during_a_prefill_chunk() -> None:
    gate = Gate()
    config = SimulatedConfig(max_num_batched_tokens=16)
    with Rig(config=config, hooks=SimulatedHooks(in_step=gate.hook), gate=gate) as rig:
        rig.worker.submit(request("chunked", prompt=list(range(40)), max_tokens=3))
        gate.arrived()
        assert rig.engine.waiting[0].num_scheduled_tokens == 16  # in the middle of its prompt
        answer = rig.worker.cancel("chunked")
        gate.open()
        assert answer.result(WAIT_S) == CancelAnswer.CANCELLED
    assert tokens_of(rig.life("chunked")) == []
    assert rig.engine.free_blocks == rig.engine.num_blocks


def test_cancel_in_the_step_that_finishes_it() -> None:
    """The step was already running: its end wins, and the answer says so."""
    gate = Gate()
    with Rig(hooks=SimulatedHooks(in_step=gate.hook), gate=gate) as rig:
        wanted = request("last-step", max_tokens=1)
        stream = rig.worker.submit(wanted)
        gate.arrived()
        answer = rig.worker.cancel("last-step")
        gate.open()
        assert answer.result(WAIT_S) == CancelAnswer.ALREADY_FINISHED
    assert rig.end("last-step").reason is Reason.LENGTH
    assert tokens_of(stream.take_nowait()) == expected_tokens(wanted)


def test_cancel_after_the_end_and_of_an_unknown_id() -> None:
    with Rig() as rig:
        stream = rig.worker.submit(request("done", max_tokens=1))
        until(lambda: stream.finished is not None)
        rig.sync()
        assert rig.worker.cancel("done").result(WAIT_S) == CancelAnswer.ALREADY_FINISHED
        assert rig.worker.cancel("never-seen").result(WAIT_S) == CancelAnswer.UNKNOWN
    assert rig.end("done").reason is Reason.LENGTH


def test_cancel_twice_answers_twice_and_ends_once() -> None:
    gate = Gate()
    with Rig(hooks=SimulatedHooks(in_step=gate.hook), gate=gate) as rig:
        rig.worker.submit(request("twice", max_tokens=9))
        gate.arrived()
        answers = [rig.worker.cancel("twice"), rig.worker.cancel("twice")]
        gate.open()
        assert [answer.result(WAIT_S) for answer in answers] == [CancelAnswer.CANCELLED] * 2
    assert rig.end("twice").reason is Reason.CANCELLED


def test_cancel_during_close() -> None:
    """close() drains with the step held; a cancel that comes then still decides the reason."""
    gate = Gate()
    rig = Rig(hooks=SimulatedHooks(in_step=gate.hook), gate=gate)
    with rig:
        rig.worker.submit(request("draining", max_tokens=50))
        stays = request("stays", max_tokens=3)
        stream = rig.worker.submit(stays)
        gate.arrived()
        closing = threading.Thread(target=rig.worker.close, args=(WAIT_S,))
        closing.start()
        until(lambda: rig.worker.state is State.DRAINING)
        answer = rig.worker.cancel("draining")
        gate.open()
        assert answer.result(WAIT_S) == CancelAnswer.CANCELLED
        closing.join(WAIT_S)
        assert not closing.is_alive()
    assert rig.end("draining").reason is Reason.CANCELLED
    assert tokens_of(stream.take_nowait()) == expected_tokens(stays)
    assert rig.engine.closed


def test_no_token_after_a_cancel_was_answered() -> None:
    gate = Gate()
    with Rig(hooks=SimulatedHooks(after_step=gate.hook), gate=gate) as rig:
        rig.worker.submit(request("chatty", max_tokens=500))
        rig.worker.submit(request("witness", max_tokens=40))
        for _ in range(5):
            gate.arrived()
            gate.release()
        gate.arrived()
        answer = rig.worker.cancel("chatty")
        gate.open()
        answer.result(WAIT_S)
        seen = len(rig.life("chatty"))
    assert len(rig.life("chatty")) == seen
    assert rig.end("chatty").reason is Reason.CANCELLED
    assert rig.end("witness").output_tokens == 40


def test_a_cancel_never_touches_another_request() -> None:
    """Half of the requests are cancelled at a held step; every other one gets exactly its tokens."""
    gate = Gate()
    wanted = [request(f"r{index}", max_tokens=5 + index) for index in range(16)]
    with Rig(WorkerLimits(max_active=16), hooks=SimulatedHooks(in_step=gate.hook), gate=gate) as rig:
        streams = [rig.worker.submit(one) for one in wanted]
        for _ in range(4):
            gate.arrived()
            gate.release()
        gate.arrived()
        for one in wanted[::2]:
            rig.worker.cancel(one.request_id)
        gate.open()
    for one, stream in list(zip(wanted, streams, strict=True))[1::2]:
        assert tokens_of(stream.take_nowait()) == expected_tokens(one)
    check_lives(rig.events)
    assert rig.engine.free_blocks == rig.engine.num_blocks


def test_an_id_can_be_used_again_after_its_end_and_not_before() -> None:
    gate = Gate()
    with Rig(hooks=SimulatedHooks(in_step=gate.hook), gate=gate) as rig:
        rig.worker.submit(request("same", max_tokens=3))
        gate.arrived()
        with pytest.raises(DuplicateRequest, match="in use"):
            rig.worker.submit(request("same", max_tokens=3))
        answer = rig.worker.cancel("same")
        gate.open()
        answer.result(WAIT_S)
        again = request("same", prompt=[1, 2, 3], max_tokens=2)
        stream = rig.worker.submit(again)
    assert tokens_of(stream.take_nowait()) == expected_tokens(again)
    check_lives(rig.events)


def test_queue_places_are_reserved_atomically() -> None:
    """32 threads submit at once for 5 places while the owner is held: 5 get one, 27 are refused, none is lost."""
    gate = Gate()
    limits = WorkerLimits(max_active=1, max_queued=5)
    with Rig(limits, hooks=SimulatedHooks(in_step=gate.hook), gate=gate) as rig:
        rig.worker.submit(request("holder", max_tokens=1))
        gate.arrived()
        barrier = threading.Barrier(32)

        def submit(index: int) -> str:
            barrier.wait(WAIT_S)
            try:
                rig.worker.submit(request(f"racer{index}", max_tokens=2))
            except QueueFull as refusal:
                return str(refusal)
            return "accepted"

        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(submit, range(32)))
        accepted = [answer == "accepted" for answer in answers]
        assert sum(accepted) == 5
        assert set(answers) == {"accepted", "the queue holds 5 of 5 requests; try again later"}
        gate.open()
    ends = [rig.end(f"racer{index}") for index in range(32)]
    for index, end in enumerate(ends):
        assert (end.reason is Reason.LENGTH and end.output_tokens == 2) is accepted[index]
        assert (end.reason is Reason.REJECTED) is not accepted[index]
    check_lives(rig.events)


def test_slow_reader_is_released_and_nobody_else_notices() -> None:
    limits = WorkerLimits(stream_capacity=8)
    with Rig(limits) as rig:
        reader_task = request("reads", max_tokens=6)
        reads = rig.worker.submit(reader_task)
        stalls = rig.worker.submit(request("stalls", max_tokens=900))
    assert rig.end("stalls").reason is Reason.SLOW_CONSUMER
    assert rig.end("stalls").output_tokens < 900
    kept = stalls.take_nowait()
    assert len(tokens_of(kept)) + 2 <= 8 + 1  # submitted and admitted take places too; the end always fits
    assert kept[-1] is stalls.finished
    assert tokens_of(reads.take_nowait()) == expected_tokens(reader_task)
    assert rig.engine.free_blocks == rig.engine.num_blocks


def test_engine_exception_ends_every_open_request_and_a_new_worker_starts() -> None:
    gate = Gate()

    def fault(engine: SimulatedEngine) -> None:
        gate.hook(engine)
        raise RuntimeError("injected fault")

    rig = Rig(WorkerLimits(max_active=2), hooks=SimulatedHooks(in_step=fault), gate=gate)
    with rig:
        streams = [rig.worker.submit(request(f"r{index}")) for index in range(5)]
        gate.arrived()
        pending_cancel = rig.worker.cancel("r4")
        gate.open()
        assert pending_cancel.result(WAIT_S) == CancelAnswer.ALREADY_FINISHED
    for index, stream in enumerate(streams):
        end = rig.end(f"r{index}")
        assert end.reason is Reason.ERROR
        assert "injected fault" in (end.message or "")
        assert stream.finished == end
    assert rig.worker.state is State.DEAD
    assert rig.worker.failure == "RuntimeError: injected fault"
    assert rig.engine.closed
    with pytest.raises(NotServing, match="dead"):
        rig.worker.submit(request("too-late"))
    check_lives(rig.events)
    with Rig() as second:
        wanted = request("r0")
        stream = second.worker.submit(wanted)
    assert tokens_of(stream.take_nowait()) == expected_tokens(wanted)


def test_close_ends_the_rest_with_shutdown_at_the_deadline() -> None:
    gate = Gate()
    rig = Rig(WorkerLimits(max_active=1), hooks=SimulatedHooks(in_step=gate.hook), gate=gate)
    rig.worker.start()
    rig.worker.submit(request("active", max_tokens=1000))
    rig.worker.submit(request("queued"))
    gate.arrived()
    closing = threading.Thread(target=rig.worker.close, args=(0.0,))
    closing.start()
    until(lambda: rig.worker.state is State.DRAINING)
    with pytest.raises(NotServing, match="draining"):
        rig.worker.submit(request("late"))
    gate.open()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert rig.end("active").reason is Reason.SHUTDOWN
    assert rig.end("queued").reason is Reason.SHUTDOWN
    assert rig.end("late").reason is Reason.REJECTED
    assert rig.worker.state is State.CLOSED
    assert rig.engine.closed
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("-owner")]


def test_close_drains_what_was_accepted_when_there_is_time() -> None:
    with Rig(WorkerLimits(max_active=1)) as rig:
        wanted = [request(f"r{index}", max_tokens=3) for index in range(6)]
        streams = [rig.worker.submit(one) for one in wanted]
    for one, stream in zip(wanted, streams, strict=True):
        assert tokens_of(stream.take_nowait()) == expected_tokens(one)


def test_a_step_that_hangs_is_abandoned_and_says_nothing_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """close() gives up; the requests get their end from it. The step returns later: not one event more."""
    monkeypatch.setattr("nanolab.serving.worker.EXIT_GRACE_S", 0.05)
    gate = Gate()
    rig = Rig(hooks=SimulatedHooks(in_step=gate.hook))
    rig.worker.start()
    stream = rig.worker.submit(request("stuck", max_tokens=1))
    gate.arrived()
    rig.worker.close(0.0)
    assert rig.worker.state is State.DEAD
    assert "did not return" in (rig.worker.failure or "")
    assert stream.finished is not None
    assert stream.finished.reason is Reason.SHUTDOWN
    before = list(rig.events)
    gate.open()
    rig.worker._thread.join(WAIT_S)
    assert not rig.worker._thread.is_alive()
    assert rig.events == before
    assert rig.engine.closed


def test_an_engine_that_cannot_be_created_is_the_callers_error() -> None:
    from nanolab.serving import Worker

    def create() -> SimulatedEngine:
        raise RuntimeError("no model here")

    worker = Worker(create)
    with pytest.raises(RuntimeError, match="no model here"):
        worker.start()
    with pytest.raises(NotServing):
        worker.submit(request("r"))
    worker.close()
    assert worker.state is State.DEAD


def test_kv_exhausted_ends_only_the_request_that_can_never_fit() -> None:
    config = SimulatedConfig(kvcache_block_size=4, num_kvcache_blocks=4)
    with Rig(config=config) as rig:
        rig.worker.submit(request("too-big", prompt=list(range(10)), max_tokens=20))
        small = request("small", prompt=[1, 2], max_tokens=3)
        stream = rig.worker.submit(small)
    assert rig.end("too-big").reason is Reason.KV_EXHAUSTED
    assert tokens_of(stream.take_nowait()) == expected_tokens(small)
    assert rig.engine.free_blocks == 4


def test_the_engines_own_refusal_rejects_one_request() -> None:
    class Picky(SimulatedEngine):
        def add(self, prompt, params):  # type: ignore[no-untyped-def]
            if 13 in prompt:
                raise ValueError("unlucky prompt")
            return super().add(prompt, params)

    from nanolab.serving import Worker

    events: list = []
    worker = Worker(Picky, listeners=(events.extend,))
    worker.start()
    worker.submit(request("bad", prompt=[13]))
    good = request("good", prompt=[12])
    stream = worker.submit(good)
    worker.close(WAIT_S)
    ends = {event.request_id: event for event in events if type(event).__name__ == "Finished"}
    assert (ends["bad"].reason, ends["bad"].message) == (Reason.REJECTED, "unlucky prompt")
    assert tokens_of(stream.take_nowait()) == expected_tokens(good)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (request("", prompt=[1]), "request_id has 0 characters"),
        (request("x" * 201, prompt=[1]), "request_id has 201 characters"),
        (request("r", prompt=[1, 260]), r"token id 260 is outside the vocabulary \[0, 260\)"),
        (request("r", prompt=[-1]), "token id -1"),
        (request("r", max_tokens=0), "max_tokens is 0"),
        (request("r", prompt=[1] * 1000, max_tokens=25), "1000 prompt tokens .* = 1025, more than the context of 1024"),
        (request("r", temperature=float("nan")), "temperature is nan"),
        (request("r", temperature=-1.0), "temperature is -1"),
        (request("r", temperature=1e-45), "temperature is 1e-45; it must be 0, which is greedy, or from 1e-05"),
        (request("r", top_p=0.0), "top_p is 0"),
        (request("r", top_k=-1), "top_k is -1"),
        (request("r", seed=2**63), "seed is"),
        (request("r", stop_token_ids=tuple(range(65))), "65 stop_token_ids"),
    ],
)
def test_what_can_never_run_is_refused_with_its_numbers(wanted, message) -> None:  # type: ignore[no-untyped-def]
    with Rig() as rig, pytest.raises(InvalidRequest, match=message):
        rig.worker.submit(wanted)
    assert rig.events == []


def test_an_empty_prompt_is_refused() -> None:
    from nanolab.serving import GenerationRequest, SamplingSpec

    with Rig() as rig, pytest.raises(InvalidRequest, match="prompt is empty"):
        rig.worker.submit(GenerationRequest("r", [], SamplingSpec(max_tokens=1)))
