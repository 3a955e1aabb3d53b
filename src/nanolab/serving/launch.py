"""From command-line choices to something a Worker can create, and to the header of the log it will write.

This is the only module of the service that knows `nanolab.sources`. Nothing is loaded here: `Launch.create` is
called by the Worker, on the thread that will own the engine.
"""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from nanolab.errors import LabError, MissingPrerequisite
from nanolab.evidence import describe_device
from nanolab.serving.engine import CreateEngine, EngineFacts
from nanolab.serving.events import RunHeader
from nanolab.serving.lifecycle import require_positive
from nanolab.serving.simulated import SimulatedConfig, SimulatedEngine
from nanolab.sources import EngineSource, resolve
from nanolab.verdicts import EvidenceType

__all__ = ["EngineOptions", "Launch", "prepare", "run_header"]

POLICIES = ("prefill_first", "balanced")
DISTRIBUTIONS = ("nanolab", "torch", "transformers", "numpy", "msgspec", "uvicorn", "starlette", "aiohttp")


@dataclass(frozen=True)
class EngineOptions:
    """The options that `load` and `serve` share; sizes in tokens and sequences."""

    source: Path | None = None
    model: Path | None = None
    simulated: bool = False
    policy: str = "prefill_first"
    max_model_len: int = 1024
    batch_tokens: int = 256
    batch_seqs: int = 4
    tp: int = 1
    eager: bool = True
    gpu_memory_utilization: float = 0.5
    dist_init: str | None = None
    shm_name: str | None = None
    simulated_step_ms: float = 2.0

    def engine_config(self) -> dict[str, Any]:
        """Names of the engine's own Config; None means the engine's default, which upstream has too."""
        return {
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.batch_tokens,
            "max_num_seqs": self.batch_seqs,
            "tensor_parallel_size": self.tp,
            "enforce_eager": self.eager,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "scheduling_policy": None if self.policy == "prefill_first" else self.policy,
            "dist_init_method": self.dist_init,
            "shm_name": self.shm_name,
        }


@dataclass(frozen=True)
class Launch:
    create: CreateEngine
    options: EngineOptions
    engine: dict[str, Any]
    model: dict[str, Any] | None
    model_id: str
    model_root: str

    def revealed(self, facts: EngineFacts) -> dict[str, Any]:
        """What a server says about itself in /health, and a log in its header; `facts` are the live engine's."""
        return {
            "policy": self.options.policy,
            "tensor_parallel_size": self.options.tp,
            "execution": facts.execution,  # an engine that could not capture its graphs runs eagerly
            "simulated": self.options.simulated,
        }

    def evidence(self, facts: EngineFacts) -> EvidenceType:
        if self.options.simulated:
            return EvidenceType.CPU_SIMULATION
        return EvidenceType.GPU if facts.device == "cuda" else EvidenceType.CPU_ENGINE


def prepare(options: EngineOptions) -> Launch:
    """Check the choices; LabError says what is missing. The engine itself is not created yet."""
    if options.policy not in POLICIES:
        raise LabError(f"--policy is {options.policy!r}; choose one of {', '.join(POLICIES)}")
    if options.simulated:
        return _prepare_simulated(options)
    if options.model is None:
        raise LabError("no model directory: pass --model, set MODEL_DIR (`source env.sh`), or choose --simulated")
    if not options.eager:
        _require_cuda()
    from nanolab.models import check_model_dir, describe_model

    check_model_dir(options.model)
    source = resolve(options.source)
    wanted = {name: value for name, value in options.engine_config().items() if value is not None}
    source.require_options(set(wanted))
    model = describe_model(options.model)
    return Launch(
        create=_creator(source, options.model, wanted),
        options=options,
        engine=source.describe(),
        model=model,
        model_id=options.model.resolve().name,
        model_root=options.model.resolve().name,
    )


def _require_cuda() -> None:
    """An engine on CPU always runs eagerly: a run that says `graph` would compare eager with eager."""
    import torch

    if not torch.cuda.is_available():
        raise MissingPrerequisite(
            "--graph replays CUDA graphs and torch sees no CUDA device; choose --eager here, or run this on a GPU host"
        )


def _creator(source: EngineSource, model: Path, config: dict[str, Any]) -> CreateEngine:
    return lambda: source.create_engine(model, **config)


def _prepare_simulated(options: EngineOptions) -> Launch:
    if options.policy != "prefill_first" or options.tp != 1:
        raise LabError("the simulated engine knows --policy prefill_first and --tp 1 only")
    require_positive(options, "max_model_len", "batch_tokens", "batch_seqs")
    if not 0 <= options.simulated_step_ms < float("inf"):
        raise LabError(f"--simulated-step-ms is {options.simulated_step_ms:g}; it must be 0 or more")
    config = SimulatedConfig(
        max_model_len=options.max_model_len,
        max_num_batched_tokens=options.batch_tokens,
        max_num_seqs=options.batch_seqs,
        step_seconds=options.simulated_step_ms / 1e3,
        # Room for the whole context of every request of a step, and of 64 at least: nobody is preempted for blocks.
        num_kvcache_blocks=max(512, -(-options.max_model_len // 16) * max(64, options.batch_seqs)),
    )
    engine: dict[str, Any] = {
        "kind": "simulated",
        "package": "nanolab.serving.simulated",
        "commit": None,
        "patches": [],
    }
    return Launch(lambda: SimulatedEngine(config), options, engine, None, "simulated", "simulated")


def run_header(
    *,
    evidence: EvidenceType | None,
    launch: Launch | None = None,
    device: str | None = None,
    config: dict[str, Any] | None = None,
    **marks: Any,
) -> RunHeader:
    """The first line of a log. `evidence` is None where a remote endpoint does not reveal what it runs on."""
    return RunHeader(
        run_id=uuid4().hex[:12],
        started_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        versions={"python": platform.python_version()} | {name: _version(name) for name in DISTRIBUTIONS},
        evidence=None if evidence is None else evidence.value,
        engine=None if launch is None else launch.engine,
        model=None if launch is None else launch.model,
        device=None if device is None else describe_device(device),
        config=config or {},
        **marks,
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
