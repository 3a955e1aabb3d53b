"""Two servers, one after the other, the same trace: the order of the runs and the life of a server process.

Every run gets a fresh server, so that no run finds the prefix cache of another. The order swaps from repeat to
repeat (A B, B A, A B), so that a host that warms up or slows down favours neither.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from nanolab.errors import LabError, MissingPrerequisite

__all__ = [
    "find_vllm",
    "free_port",
    "run_order",
    "running",
    "stored_dtype",
    "summarize",
    "vllm_command",
    "vllm_environment",
]

STOP_S = 30.0


def run_order(repeats: int, names: tuple[str, str] = ("lab", "vllm")) -> list[tuple[str, int]]:
    """(name, repeat) in the order of the runs: the first of a pair changes with every repeat."""
    return [
        (name, repeat) for repeat in range(1, repeats + 1) for name in (names if repeat % 2 else tuple(reversed(names)))
    ]


def find_vllm(environment: Path) -> Path:
    """vLLM's command in a virtual environment; PENDING names what makes one."""
    command = environment / "bin" / "vllm"
    if not command.is_file():
        raise MissingPrerequisite(
            f"vLLM is not installed in {environment} (no bin/vllm there); make the environment of section 6.3, "
            "or, on a host without a GPU, run `bash scripts/maintain/vllm_env.sh`; --vllm-env names another place"
        )
    return command


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now, so that a run meets no server that was started by hand."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def vllm_command(vllm: Path, model: Path, port: int, *, max_model_len: int, seqs: int, tokens: int) -> list[str]:
    """`vllm serve` with the limits and the precision that the lab's server gets."""
    return [
        *(str(vllm), "serve", str(model), "--served-model-name", "qwen3-demo"),
        *("--host", "127.0.0.1", "--port", str(port), "--generation-config", "vllm"),
        *("--max-model-len", str(max_model_len), "--max-num-seqs", str(seqs)),
        *("--max-num-batched-tokens", str(tokens), "--gpu-memory-utilization", "0.5"),
        *("--enforce-eager", "--dtype", stored_dtype(model)),
    ]


def stored_dtype(model: Path) -> str:
    """As the lab's engine reads it. vLLM's own `auto` would turn float32 into float16."""
    config = msgspec.json.decode((model / "config.json").read_bytes())
    return str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")


def vllm_environment(base: Mapping[str, str], vllm: Path) -> dict[str, str]:
    """Offline, no usage report, /server_info so that a log can name the device.

    On CPU: 1 GiB of KV cache, and as many threads as OMP_NUM_THREADS says, as for the lab's engine.
    """
    return {
        **base,
        "PATH": f"{vllm.parent}{os.pathsep}{base.get('PATH', '')}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": base.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        "VLLM_CPU_OMP_THREADS_BIND": base.get("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    }


@contextlib.contextmanager
def running(command: Sequence[str], url: str, log: Path, env: Mapping[str, str], start_s: float) -> Iterator[None]:
    """The server `command`, ready when `url`/health answers 200; SIGTERM at the end, then its process group is gone."""
    if _answers(url):
        raise LabError(f"something already answers at {url}; stop it or choose another port")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )
        try:
            _wait_ready(process, url, log, start_s)
            yield
        finally:
            _stop(process)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while not _answers(url):
        if process.poll() is not None:
            raise LabError(f"the server ended with exit code {process.returncode} before it was ready; read {log}")
        if time.monotonic() > deadline:
            raise LabError(f"the server was not ready within {start_s:g} s; read {log}, or raise --start-s")
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """vLLM's engine core is a child of its server: what is left of the group after the grace period is killed."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# ---- the comparison --------------------------------------------------------------------------------------

METRICS = ("tokens_per_s", "short_ttft_ms", "long_ttft_ms", "short_itl_ms", "short_tpot_ms", "long_tpot_ms")


def summarize(report: Mapping[str, Any], order: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """One row a run, in the order of the runs, and each server's median over its repeats.

    Medians of a run are taken over its requests (ITL: over its gaps); no sample of one run is mixed with another's.
    Runs that the report does not average keep their row, marked, and stay out of the medians.
    """
    measured = {run["log"].removesuffix(".jsonl"): run for run in report["measurements"]}
    runs = []
    for number, (server, repeat) in enumerate(order, start=1):
        run = next(run for name, run in measured.items() if name.endswith(f"-{server}-{repeat}"))
        row = {"run": number, "server": server, **_metrics_of(run)}
        runs.append(row | {"late_ms": run["lateness_ms"]["max_ms"], "averaged": run["averaged"]})
    servers = dict.fromkeys(server for server, _ in order)
    return {"runs": runs, "medians": {server: _medians(runs, server) for server in servers}}


def _metrics_of(run: Mapping[str, Any]) -> dict[str, float | None]:
    seen = run["observers"]["client"]

    def median_of(name: str, metric: str) -> float | None:
        value = seen.get(name, {}).get(metric, {}).get("p50")
        return None if value is None else round(value, 1)

    return {
        "tokens_per_s": run["throughput"]["tokens_per_s"],
        "short_ttft_ms": median_of("short", "ttft_ms"),
        "long_ttft_ms": median_of("long", "ttft_ms"),
        "short_itl_ms": median_of("short", "itl_ms"),
        "short_tpot_ms": median_of("short", "tpot_ms"),
        "long_tpot_ms": median_of("long", "tpot_ms"),
    }


def _medians(runs: Sequence[Mapping[str, Any]], server: str) -> dict[str, Any]:
    mine = [run for run in runs if run["server"] == server and run["averaged"]]
    found = {name: [run[name] for run in mine if run[name] is not None] for name in METRICS}
    return {"runs": len(mine)} | {name: round(median(values), 1) if values else None for name, values in found.items()}
