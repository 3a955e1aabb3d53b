"""A process that runs the lab's programs one after another, each as if it had been started alone.

`python -m nanolab.gpu_evidence.worker` reads one JSON object a line from standard input, {"script", "arguments",
"stdout", "stderr"}, runs that script as `__main__` with its output in those files, and answers with one line,
{"code", "seconds", "left_bytes"}. What it saves is the import of torch and transformers, several seconds each time.
Between programs it collects garbage and returns GPU memory; `left_bytes` says what a program did not give back.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

__all__ = ["main", "run_script"]


def run_script(script: str, arguments: list[str]) -> int:
    """Run `script` as `python script arguments` would; returns its exit code."""
    sys.argv, sys.orig_argv = [script, *arguments], ["python", script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def with_output_in(stdout: Path, stderr: Path, script: str, arguments: list[str]) -> int:
    """`run_script` with file descriptors 1 and 2 in these files, so that libraries write there too."""
    saved = os.dup(1), os.dup(2)
    try:
        for path, descriptor in ((stdout, 1), (stderr, 2)):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(opened, descriptor)
            os.close(opened)
        return run_script(script, arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


def tidy() -> int:
    """Give back what the last program left; the bytes that GPU tensors still hold."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()  # tens of MiB a stream, not a program's
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_allocated())


def serve(line: str) -> dict[str, Any]:
    task = json.loads(line)
    switch_interval, started = sys.getswitchinterval(), time.perf_counter()
    code = with_output_in(Path(task["stdout"]), Path(task["stderr"]), task["script"], task["arguments"])
    sys.setswitchinterval(switch_interval)
    stray = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    try:
        left = tidy()
    except RuntimeError as error:  # the GPU context is lost: this process can do no more
        return {"code": code, "seconds": time.perf_counter() - started, "left_bytes": -1, "problem": str(error)[:300]}
    return {"code": code, "seconds": time.perf_counter() - started, "left_bytes": left, "threads": len(stray)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing but answers may reach the reader of this pipe
    for line in sys.stdin:
        print(json.dumps(serve(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
