"""StepProfiler: torch.profiler around a running engine's steps. It locates time; it never compares runs.

Beside the trace it leaves the device memory that rank 0 has used at most, weights and KV pool included.

Started after initialisation and warm-up, on the thread that owns the engine, through `Worker.call`. Four named
ranges (step, prepare_prefill, prepare_decode, run_model) are put around the engine's own methods and taken off again.
A CPU range includes waiting and is not kernel time. Only rank 0 is covered: other ranks are other processes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanolab.errors import LabError

__all__ = ["RANGES", "StepProfiler"]

RANGES = ("step", "prepare_prefill", "prepare_decode", "run_model")
SUMMARY_ROWS = 40
PROFILED_STEPS = 40  # a trace grows by about a megabyte a step; two rounds are what one reads


def _wake_kineto() -> None:
    """Kineto wants its first use on the thread that loaded torch, and complains on stderr otherwise."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], acc_events=True):
        pass


def peak_memory_gib() -> dict[str, float]:
    """What this process has held at most on its device: in tensors, and in all by PyTorch's allocator."""
    import torch

    peaks = {"tensors": torch.cuda.max_memory_allocated(), "allocator": torch.cuda.max_memory_reserved()}
    return {name: round(peak / 2**30, 2) for name, peak in peaks.items()}


class StepProfiler:
    """`start(driver)` and `stop()` run on the owner thread; the files are in `directory` afterwards."""

    def __init__(self, directory: Path, steps: int = PROFILED_STEPS) -> None:
        """Records the first `steps` steps after `start`."""
        _wake_kineto()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LabError(f"cannot write --profile-dir {directory}: {error.strerror}; choose another") from error
        self.directory = directory
        self.steps_left = steps
        self.ranges: list[str] = []  # of RANGES, those this engine has
        self._profile: Any = None
        self._undo: list[Callable[[], None]] = []

    def start(self, driver: Any) -> None:
        from torch.profiler import ProfilerActivity, profile

        engine = getattr(driver, "engine", driver)
        runner = getattr(engine, "model_runner", None)
        for name in RANGES:
            owner = next((part for part in (engine, runner) if callable(getattr(part, name, None))), None)
            if owner is not None:
                self._wrap(owner, name)
        activities = [ProfilerActivity.CPU]
        if getattr(driver, "device", "cpu") == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities, acc_events=True)
        self._profile.__enter__()

    def stop(self, driver: Any = None) -> None:
        """Stop recording if it still goes on, then write trace.json, operators.txt and, on a GPU, memory.json."""
        if self._profile is None:
            return
        self._end_recording()
        profile, self._profile = self._profile, None
        profile.export_chrome_trace(str(self.directory / "trace.json"))
        averages = profile.key_averages()
        on_gpu = any(getattr(event, "device_time_total", 0) for event in averages)
        order = "device_time_total" if on_gpu else "cpu_time_total"
        header = f"rank 0 only; ranges {', '.join(self.ranges)}; sorted by {order}; CPU ranges include waiting\n\n"
        table = averages.table(sort_by=order, row_limit=SUMMARY_ROWS)
        (self.directory / "operators.txt").write_text(header + table, encoding="utf-8")
        if on_gpu:
            (self.directory / "memory.json").write_text(json.dumps(peak_memory_gib()), encoding="utf-8")

    def _end_recording(self) -> None:
        """Take the ranges off; the files are written later, when no request waits for it."""
        if self._undo:
            self._profile.__exit__(None, None, None)
        while self._undo:
            self._undo.pop()()

    def _wrap(self, owner: Any, name: str) -> None:
        """Put a named range around `owner.name`, on this object only."""
        from torch.profiler import record_function

        method, own = getattr(owner, name), name in vars(owner)

        def ranged(*args: Any, **kwargs: Any) -> Any:
            with record_function(name):
                result = method(*args, **kwargs)
            if name == "step":
                self.steps_left -= 1
                if self.steps_left <= 0:
                    self._end_recording()
            return result

        setattr(owner, name, ranged)
        self._undo.append((lambda: setattr(owner, name, method)) if own else (lambda: delattr(owner, name)))
        self.ranges.append(name)
