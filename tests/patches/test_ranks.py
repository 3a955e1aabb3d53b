"""Patch 04 on real processes: gloo ranks on CPU, two engines side by side, ranks that die or do not listen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanolab.load.sidebyside import free_port
from nanolab.sources import EngineSource

from .conftest import Variant

PROGRAM = Path(__file__).parent / "ranks_main.py"
pytestmark = pytest.mark.slow


def own_options() -> list[str]:
    port = free_port()
    return [f"dist_init_method=tcp://127.0.0.1:{port}", f"shm_name=nanolab_test_{port}"]


class Started:
    """One engine in a process group of its own, so that nothing it leaves behind survives the test."""

    def __init__(self, source: EngineSource, model: Path, scene: str, options: list[str], **variables: str) -> None:
        variables["BASELINE_ADDRESS"] = f"tcp://127.0.0.1:{free_port()}"
        environment = {**os.environ, "PYTHONPATH": str(source.root), "OMP_NUM_THREADS": "1", **variables}
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(model), scene, *options],
            env=environment, cwd=source.root, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def line(self) -> dict[str, Any]:
        """The next JSON line; what the program wrote to stderr if there is none."""
        assert self.process.stdout is not None and self.process.stderr is not None
        text = self.process.stdout.readline()
        assert text.startswith("{"), self.process.stderr.read()
        result: dict[str, Any] = json.loads(text)
        return result

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def start(tiny_model: Path) -> Iterator[Any]:
    started: list[Started] = []

    def launch(
        source: EngineSource, scene: str = "run", options: list[str] | None = None, fault: str = "", timeout: int = 60
    ) -> Started:
        options = own_options() if options is None else options
        started.append(Started(source, tiny_model, scene, options, RANK_FAULT=fault, COLLECTIVE_SECONDS=str(timeout)))
        return started[-1]

    yield launch
    for each in started:
        each.end()


def shared_memory(options: list[str]) -> Path:
    return Path("/dev/shm") / options[1].partition("=")[2]


def test_after_two_engines_run_side_by_side_and_leave_nothing(variant: Variant, start: Any) -> None:
    options = [own_options(), own_options()]
    engines = [start(variant("04"), "hold", each) for each in options]
    for engine, each in zip(engines, options, strict=True):
        assert engine.line()["ready"]
        assert shared_memory(each).exists()
    results = []
    for engine in engines:
        engine.go_on()
        results.append(engine.line())
    assert results[0]["tokens"] == results[1]["tokens"] and len(results[0]["tokens"]) == 5
    for engine, result, each in zip(engines, results, options, strict=True):
        assert engine.process.wait(timeout=60) == 0
        assert result["alive"] == [False] and result["exits"] == [0]
        assert not shared_memory(each).exists()


def test_after_a_taken_address_is_an_error_that_says_so(variant: Variant, start: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        seen = start(variant("04"), options=[f"dist_init_method={address}", "shm_name=nanolab_taken"]).line()
    assert seen["error"] == "RankError"
    assert address in seen["message"] and "another dist_init_method" in seen["message"]


def test_after_a_stale_shared_memory_is_an_error_and_is_left_alone(variant: Variant, start: Any) -> None:
    options = own_options()
    stale = shared_memory(options)
    stale.write_bytes(b"left by a killed engine")
    try:
        seen = start(variant("04"), options=options).line()
        assert seen["error"] == "ConfigError" and f"remove {stale}" in seen["message"]
        assert stale.read_bytes() == b"left by a killed engine"
    finally:
        stale.unlink()


@pytest.mark.parametrize(("fault", "stage"), [("import", "process started"), ("load", "model loaded")])
def test_after_a_rank_that_dies_at_start_ends_the_engine_at_once(
    variant: Variant, start: Any, fault: str, stage: str
) -> None:
    options = own_options()
    engine = start(variant("04"), options=options, fault=fault)
    seen = engine.line()
    assert seen["error"] == "RankError" and seen["seconds"] < 45
    assert f"before '{stage}'" in seen["message"] and "exit code" in seen["message"]
    assert engine.process.wait(timeout=30) == 3
    assert not shared_memory(options).exists()


def test_before_a_dead_rank_is_waited_for_until_the_timeout(variant: Variant, start: Any) -> None:
    seen = start(variant(), options=[], fault="import", timeout=3).line()
    assert seen["error"] != "RankError" and seen["seconds"] >= 3


def test_after_a_rank_that_does_not_listen_is_killed_in_bounded_time(variant: Variant, start: Any) -> None:
    engine = start(variant("04"), fault="deaf")
    assert engine.line()["ready"]
    result = engine.line()
    assert result["exit_seconds"] < 15
    assert result["alive"] == [False] and result["exits"] == [-signal.SIGKILL]


def test_after_ctrl_c_ends_the_whole_engine(variant: Variant, start: Any) -> None:
    """The terminal sends SIGINT to every process; ranks must leave the ending to rank 0."""
    options = own_options()
    engine = start(variant("04"), "hold", options)
    pids = engine.line()["pids"]
    os.killpg(engine.process.pid, signal.SIGINT)
    assert engine.process.wait(timeout=60) != 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not shared_memory(options).exists()
