"""The processes of an evidence run: the shared worker, programs that run alone, and servers.

Each is started in a session of its own, so that ending it ends whatever it started; nothing else is ever ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["ServerProcess", "Worker", "run_alone"]

LEFT_BYTES_LIMIT = 256 * 2**20  # more than this left on the GPU by a program: a new process for the next one
READY_S, STOP_S = 120.0, 40.0


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process of ours and everything in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_alone(command: list[str], cwd: Path, env: Mapping[str, str], out: Path, err: Path, timeout_s: float) -> int:
    """Exit code of a program in its own process; 124 when it ran past the time."""
    with out.open("ab") as stdout, err.open("ab") as stderr:
        process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            end(process)


class Worker:
    """Runs programs in one process (worker.py) and replaces it when it died, hung or kept GPU memory."""

    def __init__(self, cwd: Path, env: Mapping[str, str], stderr: Path) -> None:
        self.cwd, self.env, self.stderr = cwd, env, stderr
        self.process: subprocess.Popen[str] | None = None
        self.starts = 0

    def run(self, script: str, arguments: list[str], out: Path, err: Path, timeout_s: float) -> int:
        """Exit code of the program; 124 on timeout, 125 when the process died under it."""
        process = self.process or self._start()
        assert process.stdin is not None
        task = {"script": script, "arguments": arguments, "stdout": str(out), "stderr": str(err)}
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            answer = self._answer(process, timeout_s)
        except BrokenPipeError:
            answer = {"code": 125}
        lost = answer["code"] in (124, 125) or not 0 <= answer.get("left_bytes", 0) <= LEFT_BYTES_LIMIT
        if lost:
            self.close()
        return int(answer["code"])

    def _start(self) -> subprocess.Popen[str]:
        self.starts += 1
        with self.stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nanolab.gpu_evidence.worker"], cwd=self.cwd, env=self.env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
            )  # fmt: skip
        return self.process

    def _answer(self, process: subprocess.Popen[str], timeout_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return {"code": 124}
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"code": 125}
        return answer

    def close(self) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        end(process)
        process.stdout.close()


class ServerProcess:
    """`run.py serve` on a free port, from ready to the end of its log."""

    def __init__(self, command: list[str], cwd: Path, env: Mapping[str, str], out: Path, err: Path) -> None:
        self.out = out
        self.seen = out.stat().st_size if out.exists() else 0
        with out.open("ab") as stdout, err.open("ab") as stderr:
            self.process = subprocess.Popen(
                command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                start_new_session=True,
            )  # fmt: skip

    def url(self) -> str | None:
        """Its address once it is ready; None when it ended or took too long."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            text = self.out.read_bytes()[self.seen :].decode("utf-8", "replace")
            for line in text.splitlines(keepends=True):
                if line.startswith("ready ") and line.endswith("\n"):
                    return line.split()[1]
            if self.process.poll() is not None:
                return None
            time.sleep(0.05)
        return None

    def stop(self) -> int:
        """Ctrl-C, and its exit code; 124 when it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            end(self.process)
