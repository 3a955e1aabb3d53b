"""A program that loses rank 1 while its two-rank engine is idle, run by test_lost_rank.py as a process of its own.

    lost_rank_main.py MODEL step|worker OPTIONS

`step` calls the engine itself; `worker` has a Worker own it, with nobody asking it for anything. One JSON line says
what happened and how long it took.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from typing import Any


def kill(process: Any) -> None:
    """The rank is dead and reaped when this returns; it never gets to clean up."""
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)


def lose_before_a_step(model: str, options: dict[str, Any]) -> dict[str, Any]:
    from nanoengine import LLM, SamplingParams

    engine = LLM(model, **options)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    tokens = engine.generate([[11, 12, 13]], params, use_tqdm=False)[0]["token_ids"]
    kill(engine.processes[0])
    engine.add_request([11, 12, 13], params)
    began = time.monotonic()
    try:
        engine.step()
        error = "none"
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    noticed = time.monotonic()
    engine.exit()
    return {"tokens": tokens, "error": error, "notice_s": noticed - began, "exit_s": time.monotonic() - noticed}


def lose_under_a_worker(model: str, options: dict[str, Any]) -> dict[str, Any]:
    from nanolab.serving import GenerationRequest, SamplingSpec, Worker
    from nanolab.serving.events import Token
    from nanolab.serving.lifecycle import State
    from nanolab.sources import resolve

    events: list[Any] = []
    source = resolve(None)
    worker = Worker(lambda: source.create_engine(model, **options), listeners=(events.extend,))
    worker.start()
    worker.submit(GenerationRequest("r", [11, 12, 13], SamplingSpec(3, ignore_eos=True)))
    while not any(getattr(event, "reason", None) for event in events):
        time.sleep(0.01)
    kill(multiprocessing.active_children()[0])
    began = time.monotonic()
    while worker.state is not State.DEAD and time.monotonic() < began + 30:
        time.sleep(0.01)
    noticed = time.monotonic()
    worker.close()
    tokens = [event.token for event in events if isinstance(event, Token)]
    seconds = {"notice_s": noticed - began, "exit_s": time.monotonic() - noticed}
    return {"tokens": tokens, "error": worker.failure, **seconds}


def main() -> None:
    model, scene, options = sys.argv[1:]
    lose = {"step": lose_before_a_step, "worker": lose_under_a_worker}[scene]
    result = lose(model, json.loads(options))
    print(json.dumps(result | {"children": len(multiprocessing.active_children())}))


if __name__ == "__main__":
    main()
