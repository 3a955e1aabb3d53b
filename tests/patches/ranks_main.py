"""A program that starts a tensor-parallel engine, run by test_ranks.py as a process of its own.

    ranks_main.py MODEL SCENE [name=value ...]

Rank processes import this file again (as __mp_main__): the environment variable RANK_FAULT then breaks them on purpose.
"""

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

FAULT = os.environ.get("RANK_FAULT", "")
if __name__ == "__mp_main__":  # a rank process
    if FAULT == "import":
        raise SystemExit(7)
    import signal

    from nanoengine.engine import model_runner

    if FAULT == "load":

        def broken_load(*_: Any) -> None:
            raise MemoryError("this card is full (on purpose)")

        model_runner.load_model = broken_load
    elif FAULT == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

        def deaf(_self: Any) -> None:
            while True:
                time.sleep(0.1)

        model_runner.ModelRunner.follow = deaf  # type: ignore[method-assign]


def main() -> None:
    model, scene, *pairs = sys.argv[1:]
    from nanoengine import LLM, SamplingParams
    from nanoengine.engine import model_runner

    if hasattr(model_runner, "DIST_INIT_METHOD"):  # the baseline's fixed address; its rank never gets to read it
        model_runner.DIST_INIT_METHOD = os.environ["BASELINE_ADDRESS"]
    model_runner.COLLECTIVE_TIMEOUT = timedelta(seconds=int(os.environ.get("COLLECTIVE_SECONDS", "60")))
    if FAULT == "deaf":
        model_runner.JOIN_SECONDS = 0.5
    options: dict[str, Any] = {
        "device": "cpu", "dtype": "float32", "tensor_parallel_size": 2, "max_model_len": 128, "max_num_seqs": 4,
        "max_num_batched_tokens": 64, "kvcache_block_size": 16, "num_kvcache_blocks": 16,
        **dict(pair.split("=", 1) for pair in pairs),
    }  # fmt: skip
    start = time.monotonic()
    try:
        engine = LLM(model, **options)
    except Exception as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error), "seconds": time.monotonic() - start}))
        sys.stdout.flush()
        raise SystemExit(3) from error
    print(json.dumps({"ready": True, "pids": [process.pid for process in engine.processes]}), flush=True)
    if scene == "hold":
        sys.stdin.readline()
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    tokens = None if FAULT == "deaf" else engine.generate([[11, 12, 13]], params, use_tqdm=False)[0]["token_ids"]
    start = time.monotonic()
    engine.exit()
    engine.exit()  # harmless
    alive = [process.is_alive() for process in engine.processes]
    exits = [process.exitcode for process in engine.processes]
    print(json.dumps({"tokens": tokens, "exit_seconds": time.monotonic() - start, "alive": alive, "exits": exits}))


if __name__ == "__main__":
    main()
