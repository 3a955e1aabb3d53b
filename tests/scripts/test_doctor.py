"""The doctor: each check judged from a stand-in host, and the real program in a real process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nanolab import doctor
from nanolab.doctor import Examination, Host, Report, Status
from nanolab.doctor.checks import INSTALL_FLASH, MAKE_TINY, REFERENCE, TOKENIZER_SHA256, read_pins
from nanolab.doctor.host import ProbeFailed
from nanolab.evidence import load, repo_root

GIB = 2**30
PINS = "torch==2.13.0\ntransformers==5.17.0\nnumpy==2.4.6\n"


class StandIn(Host):
    """A host on which everything is right; a test changes one answer."""

    def __init__(self, root: Path, gpu: bool = True) -> None:
        super().__init__(root)
        self.answers: dict[str, Any] = {
            "python_version": "3.11.2",
            "gpus": [{"name": "A GPU", "driver": "535.261.03"}] if gpu else [],
            "visible_devices": None,
            "torch_facts": {
                "build": "12.9", "available": True, "name": "A GPU", "free": 70 * GIB, "total": 80 * GIB, "count": 1,
            },
            "cuda_error": 0.0,
            "engine_facts": {"kind": "bundled", "root": str(root), "file": str(root / "nanoengine/x.py")},
            "model_facts": {"name": "m", "config_sha256": "0", "weights_sha256": "f" * 64, "synthetic": False},
            "port_is_free": True,
            "shared_memory": [],
            "free_disk_bytes": 10 * GIB,
            "sha256": TOKENIZER_SHA256,
        }  # fmt: skip
        self.versions: dict[str, str | None] = {"torch": "2.8.0+cu129", "transformers": "4.57.1", "numpy": "2.4.6"}
        self.versions.update(triton="3.4.0", flash_attn="2.8.3")
        self.broken_imports: dict[str, str] = {}

    def version(self, distribution: str) -> str | None:
        return self.versions[distribution]

    def import_modules(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.broken_imports:
                raise ProbeFailed(self.broken_imports[name])


def _answer(name: str) -> Callable[..., Any]:
    def method(self: StandIn, *_: object) -> Any:
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return method


for _name in (
    "python_version", "gpus", "visible_devices", "torch_facts", "cuda_error", "engine_facts", "model_facts",
    "port_is_free", "shared_memory", "free_disk_bytes", "sha256",
):  # fmt: skip
    setattr(StandIn, _name, _answer(_name))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "requirements-cpu.txt").write_text(PINS)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    return tmp_path


@pytest.fixture
def host(root: Path) -> StandIn:
    return StandIn(root)


def report(host: StandIn, cpu_only: bool = False) -> Report:
    return doctor.examine(Examination(host, model=host.root / "model"), cpu_only)


def row(document: dict[str, Any], name: str) -> dict[str, str]:
    return next(row for row in document["checks"] if row["name"] == name)


def test_everything_right_is_pass(host: StandIn) -> None:
    document = report(host).document()
    assert {row["status"] for row in document["checks"]} == {"OK"}
    assert (document["check"], document["cpu_readiness"], document["gpu_readiness"]) == ("PASS",) * 3
    assert report(host).computed_on_gpu
    assert all(
        set(row) == {"name", "needed_for", "status", "observed", "expected", "fix"} for row in document["checks"]
    )


def test_a_host_without_gpu_is_pending_and_says_what_can_be_done(root: Path) -> None:
    document = report(StandIn(root, gpu=False)).document()
    assert (document["check"], document["cpu_readiness"], document["gpu_readiness"]) == ("PENDING", "PASS", "PENDING")
    assert {row["status"] for row in document["checks"] if row["needed_for"] == "gpu"} == {"SKIP"}
    assert "no NVIDIA GPU is visible" in document["summary"]
    assert any("quick_walk.py --case A" in command for command in document["available_now"])
    assert not report(StandIn(root, gpu=False)).computed_on_gpu


def test_cpu_readiness_alone_passes_without_gpu(root: Path) -> None:
    assert report(StandIn(root, gpu=False), cpu_only=True).document()["check"] == "PASS"


def test_hidden_gpus_are_not_a_failure(host: StandIn) -> None:
    host.answers["visible_devices"] = ""
    document = report(host).document()
    assert document["gpu_readiness"] == "PENDING"
    assert "CUDA_VISIBLE_DEVICES='' hides" in document["summary"]


@pytest.mark.parametrize(
    ("question", "answer", "name", "observed", "fix"),
    [
        ("python_version", "3.10.9", "python", "3.10.9", "python3.11 -m venv"),
        ("engine_facts", ProbeFailed("no engine in x"), "engine", "no engine in x", "NANO_DIR"),
        ("engine_facts", {"kind": "working-copy", "root": "/a", "file": "/b/x.py"}, "engine", "/b/x.py", "uninstall"),
        ("model_facts", ProbeFailed("weights truncated"), "model-cpu", "weights truncated", MAKE_TINY),
        ("port_is_free", False, "port", "in use", "2333"),
        ("shared_memory", ["nanoengine_1"], "shared-memory", "nanoengine_1", "rm /dev/shm/nanoengine_1"),
        ("free_disk_bytes", 2**20, "disk", "1 MiB free", "space"),
    ],
)  # fmt: skip
def test_a_failing_cpu_check_fails_both(
    host: StandIn, question: str, answer: Any, name: str, observed: str, fix: str
) -> None:
    host.answers[question] = answer
    document = report(host).document()
    found = row(document, name)
    assert found["status"] == "FAIL"
    assert observed in found["observed"]
    assert fix in found["fix"]
    assert (document["check"], document["cpu_readiness"], document["gpu_readiness"]) == ("FAIL",) * 3
    assert document["available_now"] == []
    assert name in document["summary"]


@pytest.mark.parametrize(
    ("question", "answer", "name", "observed"),
    [
        ("torch_facts", {"build": None, "available": False}, "cuda", "without CUDA"),
        ("torch_facts", {"build": "12.9", "available": False}, "cuda", "sees no device"),
        ("torch_facts", ProbeFailed("libcudart.so.12 missing"), "cuda", "libcudart"),
        ("torch_facts", {"build": "12.9", "available": True, "name": "x", "count": 1, "free": GIB, "total": 80 * GIB},
         "gpu-memory", "1.0 of 80.0 GiB free"),
        ("cuda_error", 0.5, "cuda-computation", "differ by 0.5"),
        ("cuda_error", ProbeFailed("illegal address"), "cuda-computation", "illegal address"),
        ("sha256", "0" * 64, "tokenizer", "000000000000"),
    ],
)  # fmt: skip
def test_a_failing_gpu_check_leaves_the_cpu_ready(
    host: StandIn, question: str, answer: Any, name: str, observed: str
) -> None:
    host.answers[question] = answer
    document = report(host).document()
    found = row(document, name)
    assert found["status"] == "FAIL"
    assert observed in found["observed"]
    assert found["fix"]
    assert (document["check"], document["cpu_readiness"], document["gpu_readiness"]) == ("FAIL", "PASS", "FAIL")
    assert report(host, cpu_only=True).document()["check"] == "PASS"
    assert document["available_now"] != []


def test_a_broken_flash_attn_extension_is_one_failed_check(host: StandIn) -> None:
    host.broken_imports["flash_attn_2_cuda"] = "ImportError: undefined symbol: _ZN3c10"
    document = report(host).document()
    assert row(document, "flash-attn")["status"] == "OK"  # the version alone looks fine
    found = row(document, "flash-attn-import")
    assert (found["status"], found["fix"]) == ("FAIL", INSTALL_FLASH)
    assert "undefined symbol" in found["observed"]
    assert sum(row["status"] == "FAIL" for row in document["checks"]) == 1


def test_no_flash_attn_is_allowed_because_triton_serves(host: StandIn) -> None:
    host.versions["flash_attn"] = None
    document = report(host).document()
    assert row(document, "flash-attn")["status"] == row(document, "flash-attn-import")["status"] == "SKIP"
    assert document["gpu_readiness"] == "PASS"
    host.versions["triton"] = None
    assert report(host).document()["gpu_readiness"] == "FAIL"


@pytest.mark.parametrize(
    ("version", "status", "observed"),
    [
        ("2.13.0+cpu", "OK", "2.13.0+cpu"),
        ("2.11.0+cu130", "OK", "2.11.0+cu130 (not a pin, but supported)"),
        ("2.7.1", "FAIL", "2.7.1"),
        (None, "FAIL", "not installed"),
    ],
)
def test_versions_are_held_against_the_pins(host: StandIn, version: str | None, status: str, observed: str) -> None:
    host.versions["torch"] = version
    found = row(report(host).document(), "torch")
    assert (found["status"], found["observed"]) == (status, observed)
    assert found["expected"] == "2.8.0 or 2.13.0; at least 2.8"


def test_missing_packages_are_named(host: StandIn) -> None:
    host.versions["numpy"] = None
    found = row(report(host).document(), "packages")
    assert (found["status"], found["observed"]) == ("FAIL", "missing: numpy")


def test_a_check_that_crashes_is_a_finding(host: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    host.answers["shared_memory"] = ZeroDivisionError()
    found = row(report(host).document(), "shared-memory")
    assert (found["status"], found["observed"]) == ("FAIL", "ZeroDivisionError")


def test_no_model_at_all_says_how_to_make_one(root: Path) -> None:
    document = doctor.examine(Examination(StandIn(root, gpu=False), model=root / "nowhere")).document()
    assert row(document, "model-cpu")["fix"] == MAKE_TINY


def test_the_teaching_model_serves_the_cpu_while_a_download_is_incomplete(
    host: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = host.root / "models" / "tiny"
    tiny.mkdir(parents=True)
    facts = {"name": "tiny", "config_sha256": "0", "weights_sha256": "f" * 64, "synthetic": True}

    def model_facts(self: StandIn, directory: Path) -> dict[str, Any]:
        if directory != tiny:
            raise ProbeFailed("no weights yet")
        return facts

    monkeypatch.setattr(StandIn, "model_facts", model_facts)
    document = report(host).document()
    assert row(document, "model-cpu")["status"] == "OK"
    assert "synthetic" in row(document, "model-cpu")["observed"]
    assert row(document, "model-gpu")["observed"] == "no weights yet"


def test_a_teaching_tokenizer_is_not_held_against_the_download(host: StandIn) -> None:
    (host.root / "model" / "synthetic.json").write_text("{}")
    assert row(report(host).document(), "tokenizer")["status"] == Status.SKIP.value


def test_the_reference_versions_are_those_of_the_gpu_requirements() -> None:
    requirements = repo_root() / "requirements-nano.txt"
    if not requirements.is_file():
        pytest.skip("requirements-nano.txt does not exist yet")
    assert read_pins(requirements)["transformers"] == REFERENCE["transformers"]


def test_the_real_port_probe_sees_a_listener(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not Host(tmp_path).port_is_free(listener.getsockname()[1])


def test_the_real_import_probe_survives_a_crash(tmp_path: Path) -> None:
    package = tmp_path / "src" / "crashes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    host = Host(tmp_path)
    with pytest.raises(ProbeFailed, match="ended with code -11"):
        host.import_modules(["crashes"])
    with pytest.raises(ProbeFailed, match="No module named 'nothing_like_this'"):
        host.import_modules(["nothing_like_this"])
    host.import_modules(["json"])


def test_the_real_torch_probe_answers() -> None:
    facts = Host(repo_root()).torch_facts()
    assert facts["available"] or facts["build"] is None or facts["build"]


def real_doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/e2e/doctor.py", *arguments]
    base = {**os.environ, "PYTHONPATH": str(repo_root() / "src"), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, cwd=repo_root(), env={**base, **environment}, capture_output=True, text=True, timeout=300
    )


def test_the_real_program_prints_one_document_and_agrees_with_itself(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "doctor.json"
    done = real_doctor("--out", str(out), MODEL_DIR=str(tiny_model))
    document = json.loads(done.stdout)
    assert row(document, "model-cpu")["status"] == "OK", row(document, "model-cpu")
    assert row(document, "engine")["status"] == "OK", row(document, "engine")
    assert document["gpu_readiness"] == "PENDING"
    # The port and shared memory of this host may be held by an engine that another test runs.
    busy = {"port", "shared-memory"}
    failed = {row["name"] for row in document["checks"] if row["status"] == "FAIL"}
    assert failed <= busy
    assert document["check"] == ("FAIL" if failed else "PENDING")
    assert done.returncode == {"FAIL": 1, "PENDING": 4}[document["check"]]
    assert done.stderr.splitlines()[-1] == load(out)["check"] == document["check"]


def test_the_real_program_without_its_packages_still_reports() -> None:
    command = [sys.executable, "-S", "scripts/e2e/doctor.py"]  # -S: no site-packages
    done = subprocess.run(command, cwd=repo_root(), env={}, capture_output=True, text=True, timeout=60)
    document = json.loads(done.stdout)
    assert (done.returncode, document["check"], done.stderr.splitlines()[-1]) == (1, "FAIL", "FAIL")
    assert "pip install -r requirements-cpu.txt" in document["checks"][0]["fix"]
