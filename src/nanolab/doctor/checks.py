"""The doctor's checks: each asks the host one thing and says what it saw, what it wants and what mends it.

A check is a function of the `Examination`; it returns a `Finding`. CPU checks gate everything, GPU checks gate what
needs a GPU. The expected versions are the pins of requirements-cpu.txt (the CPU path) and the reference host of
manual 5.1.1 (the GPU path); a newer version than the oldest supported one is allowed and shown, because a working
CUDA stack may be reused.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from nanolab.doctor.host import Host

__all__ = ["CPU_CHECKS", "GPU_CHECKS", "Check", "Examination", "Finding", "Status", "read_pins"]

# Manual 5.1.1, the reference host of the GPU path.
REFERENCE = {"torch": "2.8.0", "triton": "3.4.0", "flash_attn": "2.8.3", "transformers": "4.57.1"}
OLDEST = {"torch": "2.8", "triton": "3.4", "flash_attn": "2.8", "transformers": "4.57"}
PORT = 2333  # where the ranks of the baseline engine meet (patch 04 makes it an option)
RUNS_BYTES = 500 * 2**20  # recorded logit rows and profiles of one walk through the manual
MIN_GPU_FREE = 4 * 2**30  # weights, workspace and a small KV pool of a 0.6B model
GPU_SHARE = 0.5  # gpu_memory_utilization of the e2e entries
# The tokenizer.json of Qwen/Qwen3-0.6B at the pinned revision.
TOKENIZER_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"

INSTALL_CPU = "python -m pip install -r requirements-cpu.txt"
MAKE_TINY = "python scripts/e2e/make_model.py --preset tiny --out models/tiny"
DOWNLOAD = 'python scripts/e2e/download_model.py --model "$MODEL_DIR" --weights'
INSTALL_TORCH = "python -m pip install torch==2.8.0 --index-url https://download.pytorch.org/whl/cu129"
INSTALL_FLASH = (
    "MAX_JOBS=4 NVCC_THREADS=2 python -m pip install flash-attn==2.8.3 --no-build-isolation --no-deps "
    "(rebuild it after every change of torch)"
)


class Status(StrEnum):
    OK = "OK"
    FAIL = "FAIL"
    SKIP = "SKIP"  # could not be judged here, or is optional; `observed` says why


@dataclass(frozen=True)
class Finding:
    """One line of the report. `fix` is one line to run or do; empty when there is nothing to mend."""

    status: Status
    observed: str
    expected: str
    fix: str = ""


class Examination:
    """What the checks look at: the host and the places the learner chose. Slow answers are asked for once."""

    def __init__(self, host: Host, model: Path | None = None, source: Path | None = None) -> None:
        self.host = host
        self.root = host.root
        self.model = model
        self.source = source

    @cached_property
    def gpus(self) -> list[dict[str, str]]:
        return self.host.gpus()

    @cached_property
    def torch(self) -> dict[str, Any]:
        return self.host.torch_facts()

    @cached_property
    def cpu_pins(self) -> dict[str, str]:
        return read_pins(self.root / "requirements-cpu.txt")


@dataclass(frozen=True)
class Check:
    """A name and what to look at; `if_it_breaks` is the fix when looking raises."""

    name: str
    look: Callable[[Examination], Finding]
    if_it_breaks: str = "mend what `observed` says, then run the doctor again"


def read_pins(requirements: Path) -> dict[str, str]:
    """{distribution: version} of the `name==version` lines."""
    lines = requirements.read_text(encoding="utf-8").splitlines()
    pins = [re.match(r"([A-Za-z0-9_.-]+)==([^\s;#]+)", line) for line in lines]
    return {pin[1]: pin[2] for pin in pins if pin}


def _numbers(version: str) -> tuple[int, ...]:
    """2.11.0+cu130 -> (2, 11, 0): as much as an order between releases needs."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def _versions(name: str, fix: str) -> Callable[[Examination], Finding]:
    """A check that `name` is installed, at a pin or at least at the oldest supported version."""

    def look(exam: Examination) -> Finding:
        pins = sorted({REFERENCE[name], exam.cpu_pins.get(name, REFERENCE[name])}, key=_numbers)
        expected = f"{' or '.join(pins)}; at least {OLDEST[name]}"
        found = exam.host.version(name)
        if found is None:
            return Finding(Status.FAIL, "not installed", expected, fix)
        if _numbers(found) < _numbers(OLDEST[name]):
            return Finding(Status.FAIL, found, expected, fix)
        pinned = found.partition("+")[0] in pins
        return Finding(Status.OK, found if pinned else f"{found} (not a pin, but supported)", expected)

    return look


def _python(exam: Examination) -> Finding:
    found, expected = exam.host.python_version(), "3.11 or 3.12 (reference 3.11.2)"
    if _numbers(found) < (3, 11):
        return Finding(
            Status.FAIL, found, expected, "make the venv with a newer interpreter: python3.11 -m venv .venv-nano"
        )
    return Finding(Status.OK, found, expected)


def _packages(exam: Examination) -> Finding:
    missing = [name for name in exam.cpu_pins if exam.host.version(name) is None]
    expected = f"all {len(exam.cpu_pins)} packages of requirements-cpu.txt"
    if missing:
        return Finding(Status.FAIL, f"missing: {', '.join(missing)}", expected, INSTALL_CPU)
    other = [name for name, pin in exam.cpu_pins.items() if _release(exam.host.version(name)) != _release(pin)]
    observed = (
        f"all installed; other versions than the pins: {', '.join(other)}" if other else "all installed as pinned"
    )
    return Finding(Status.OK, observed, expected)


def _release(version: str | None) -> str:
    return (version or "").partition("+")[0]


def _torch_import(exam: Examination) -> Finding:
    exam.host.import_modules(["torch", "transformers", "safetensors"])
    return Finding(Status.OK, "they import", "torch, transformers and safetensors import")


def _engine(exam: Examination) -> Finding:
    facts = exam.host.engine_facts(exam.source)
    inside = Path(facts["file"]).resolve().is_relative_to(Path(facts["root"]).resolve())
    expected = f"imported from {facts['root']}"
    if not inside:
        fix = "another installation shadows it: python -m pip uninstall nano-vllm nanoengine, then try again"
        return Finding(Status.FAIL, facts["file"], expected, fix)
    return Finding(Status.OK, f"{facts['kind']}: {facts['file']}", expected)


def _cpu_model(exam: Examination) -> Finding:
    """CPU work needs any complete model: the chosen one or, where that is not complete, the teaching model."""
    tiny = exam.root / "models" / "tiny"
    places = [place for place in (exam.model, tiny) if place is not None and place.is_dir()]
    if not places:
        expected = "a complete model directory"
        return Finding(Status.FAIL, "neither MODEL_DIR nor models/tiny exists", expected, MAKE_TINY)
    for place in places[:-1]:
        with contextlib.suppress(Exception):  # model-gpu reports what is wrong with it
            return _describe_model(exam, place)
    return _describe_model(exam, places[-1])


def _gpu_model(exam: Examination) -> Finding:
    if exam.model is None:
        return Finding(Status.FAIL, "MODEL_DIR is not set", "a model directory", "source env.sh")
    if not exam.model.is_dir():
        return Finding(Status.FAIL, f"{exam.model} does not exist", "a complete model directory", DOWNLOAD)
    return _describe_model(exam, exam.model)


def _describe_model(exam: Examination, place: Path) -> Finding:
    facts = exam.host.model_facts(place)
    kind = "teaching model, synthetic weights" if facts["synthetic"] else "downloaded"
    digest = str(facts["weights_sha256"])[:12]
    return Finding(Status.OK, f"{place} ({kind}; weights sha256 {digest})", "complete: config, tokenizer, weights")


def _tokenizer(exam: Examination) -> Finding:
    """The tokenizer is the part of a download whose hash the manual states (teaching models have their own)."""
    expected = f"sha256 {TOKENIZER_SHA256[:12]} (the pinned revision)"
    file = (exam.model or exam.root) / "tokenizer.json"
    if exam.model is None or not file.is_file() or (exam.model / "synthetic.json").is_file():
        return Finding(Status.SKIP, "no downloaded tokenizer to compare", expected)
    digest = exam.host.sha256(file)
    if digest != TOKENIZER_SHA256:
        return Finding(Status.FAIL, f"sha256 {digest[:12]}", expected, DOWNLOAD.replace(" --weights", ""))
    return Finding(Status.OK, f"sha256 {digest[:12]}", expected)


def _port(exam: Examination) -> Finding:
    expected = f"port {PORT} free (ranks of the baseline engine meet there)"
    if exam.host.port_is_free(PORT):
        return Finding(Status.OK, "free", expected)
    fix = f"see who listens: ss -ltnp 'sport = :{PORT}'; end your own engine, wait for somebody else's"
    return Finding(Status.FAIL, "in use", expected, fix)


def _shared_memory(exam: Examination) -> Finding:
    names, expected = exam.host.shared_memory(), "no segment of an earlier engine in /dev/shm"
    if not names:
        return Finding(Status.OK, "none", expected)
    fix = f"if no engine of yours is running: rm {' '.join(f'/dev/shm/{name}' for name in names)}"
    return Finding(Status.FAIL, ", ".join(names), expected, fix)


def _disk(exam: Examination) -> Finding:
    free = exam.host.free_disk_bytes(exam.root / "runs")
    observed, expected = f"{free / 2**20:.0f} MiB free", f"{RUNS_BYTES / 2**20:.0f} MiB for runs/"
    if free < RUNS_BYTES:
        return Finding(Status.FAIL, observed, expected, "free some space, or make runs/ a link to a larger disk")
    return Finding(Status.OK, observed, expected)


def _driver(exam: Examination) -> Finding:
    gpu = exam.gpus[0]
    return Finding(Status.OK, f"{gpu['driver']} ({len(exam.gpus)} x {gpu['name']})", "a working NVIDIA driver")


def _cuda(exam: Examination) -> Finding:
    facts, expected = exam.torch, "torch sees a CUDA device (reference CUDA 12.9)"
    if facts["build"] is None:
        return Finding(Status.FAIL, "this torch is built without CUDA", expected, INSTALL_TORCH)
    if not facts["available"]:
        fix = "compare `nvidia-smi` with `echo $CUDA_VISIBLE_DEVICES`; the driver must support this torch's CUDA"
        return Finding(Status.FAIL, f"built for CUDA {facts['build']}, but sees no device", expected, fix)
    return Finding(Status.OK, f"CUDA {facts['build']}, {facts['count']} x {facts['name']}", expected)


def _gpu_memory(exam: Examination) -> Finding:
    free, total = exam.torch["free"], exam.torch["total"]
    needed = max(MIN_GPU_FREE, int(total * GPU_SHARE))
    observed = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    expected = f"{needed / 2**30:.1f} GiB free (gpu_memory_utilization {GPU_SHARE})"
    if free < needed:
        fix = "choose a free card: CUDA_VISIBLE_DEVICES=k python scripts/e2e/doctor.py; end no job but your own"
        return Finding(Status.FAIL, observed, expected, fix)
    return Finding(Status.OK, observed, expected)


def _cuda_computation(exam: Examination) -> Finding:
    error, expected = exam.host.cuda_error(), "an 8x8 product equal on GPU and CPU"
    if error != 0.0:
        return Finding(
            Status.FAIL, f"they differ by {error}", expected, "the CUDA stack computes wrongly: reinstall torch"
        )
    return Finding(Status.OK, "equal", expected)


def _triton_import(exam: Examination) -> Finding:
    exam.host.import_modules(["triton", "triton.language"])
    return Finding(Status.OK, "imports", "triton imports")


def _flash_version(exam: Examination) -> Finding:
    if exam.host.version("flash_attn") is None:
        observed = "not installed; the engine uses its Triton backend instead"
        return Finding(Status.SKIP, observed, f"{REFERENCE['flash_attn']} (optional)", INSTALL_FLASH)
    return _versions("flash_attn", INSTALL_FLASH)(exam)


def _flash_import(exam: Examination) -> Finding:
    """The compiled extension, not the version: a wheel built for another torch installs and does not load."""
    if exam.host.version("flash_attn") is None:
        return Finding(Status.SKIP, "not installed", "the extension loads (optional)")
    exam.host.import_modules(["torch", "flash_attn", "flash_attn_2_cuda"])
    return Finding(Status.OK, "loads", "the extension loads")


CPU_CHECKS = (
    Check("python", _python),
    Check("packages", _packages),
    Check("torch", _versions("torch", INSTALL_CPU)),
    Check("transformers", _versions("transformers", INSTALL_CPU)),
    Check("imports", _torch_import, INSTALL_CPU),
    Check("engine", _engine, "unset NANO_DIR to drive the bundled engine; python scripts/e2e/engine_source.py status"),
    Check("model-cpu", _cpu_model, f"remove the incomplete directory, then {MAKE_TINY}"),
    Check("port", _port),
    Check("shared-memory", _shared_memory),
    Check("disk", _disk),
)
GPU_CHECKS = (
    Check("driver", _driver),
    Check("cuda", _cuda),
    Check("gpu-memory", _gpu_memory),
    Check("cuda-computation", _cuda_computation),
    Check("triton", _versions("triton", "python -m pip install triton==3.4.0")),
    Check("triton-import", _triton_import, "python -m pip install --force-reinstall triton==3.4.0"),
    Check("flash-attn", _flash_version),
    Check("flash-attn-import", _flash_import, INSTALL_FLASH),
    Check("model-gpu", _gpu_model, DOWNLOAD),
    Check("tokenizer", _tokenizer),
)
