"""Finds an engine on disk, says exactly which one it is, imports it and starts it."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from nanolab.errors import LabError, MissingPrerequisite

from .driver import EngineDriver

REPO_ROOT = Path(__file__).resolve().parents[3]
BUNDLED_ROOT = REPO_ROOT / "src"
PATCHES = REPO_ROOT / "patches"

# Options of nanoengine's Config that a patch of the series brings.
PATCH_OF_OPTION = {
    "scheduling_policy": "03-fair-scheduler",
    "dist_init_method": "04-replica-isolation",
    "shm_name": "04-replica-isolation",
}
Kind = Literal["bundled", "working-copy", "upstream"]


@dataclass(frozen=True)
class EngineSource:
    """One engine on disk. `root` is the directory that holds its package."""

    kind: Kind
    root: Path
    package: str

    @property
    def package_dir(self) -> Path:
        return self.root / self.package

    # ---- what it is --------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """The `engine` field of a result block."""
        return {
            "kind": self.kind,
            "package": "src/nanoengine" if self.kind == "bundled" else self.package,
            "commit": self.commit(),
            "tree_sha256": self.tree_sha256(),
            "patches": self.patches_applied(),
        }

    def commit(self) -> str | None:
        """HEAD of the working copy or clone; None for the bundled engine, whose commit is the repository's."""
        if self.kind == "bundled":
            return None
        top = self._git("rev-parse", "--show-toplevel").strip()
        if not top or Path(top).resolve() != self.root.resolve():
            return None  # no repository of its own: a commit of one around it would name something else
        return self._git("rev-parse", "HEAD").strip() or None

    def tree_sha256(self) -> str:
        """One hash over the names and bytes of every Python file of the package."""
        digest = hashlib.sha256()
        for path in sorted(self.package_dir.rglob("*.py")):
            digest.update(path.relative_to(self.package_dir).as_posix().encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
        return digest.hexdigest()

    def patches_applied(self) -> list[str]:
        """Names of the series' patches that this engine holds."""
        series = PATCHES / "series"
        if self.kind == "upstream" or not series.is_file():
            return []
        names = [line.strip() for line in series.read_text("utf-8").splitlines() if line.strip()]
        names = [name for name in names if not name.startswith("#")]
        if self.kind == "bundled":
            return [Path(name).stem for name in names]
        return [Path(name).stem for name in names if self._reverses(PATCHES / name)]

    def _reverses(self, patch: Path) -> bool:
        done = self._run_git("apply", "--reverse", "--check", str(patch))
        return done is not None and done.returncode == 0

    def _git(self, *args: str) -> str:
        done = self._run_git(*args)
        return done.stdout if done is not None and done.returncode == 0 else ""

    def _run_git(self, *args: str) -> subprocess.CompletedProcess[str] | None:
        """The finished process; None for a copied clone without git: its commit is unknown, its hash is not."""
        try:
            return subprocess.run(["git", *args], cwd=self.root, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            if self.kind == "upstream":
                return None
            raise LabError(
                "git is not installed, or not on PATH, and a working copy is a git repository. Install it (for example "
                "`apt-get install git`), then type the same command again."
            ) from error

    # ---- importing it ------------------------------------------------------------------------------------

    def module(self, name: str = "") -> ModuleType:
        """Import a submodule ("engine.scheduler") of this engine under its own package name.

        A process drives one engine: importing a second one of the same name is refused. For upstream the package's
        __init__ is not executed, because it imports CUDA-only parts that its scheduler does not need.
        """
        self._activate()
        return importlib.import_module(f"{self.package}.{name}" if name else self.package)

    def _activate(self) -> None:
        loaded = sys.modules.get(self.package)
        if loaded is None:
            if str(self.root) not in sys.path:
                sys.path.insert(0, str(self.root))
            if self.kind == "upstream":
                loaded = ModuleType(self.package)
                loaded.__path__ = [str(self.package_dir)]
                sys.modules[self.package] = loaded
            else:
                loaded = importlib.import_module(self.package)
        found = Path(next(iter(loaded.__path__))).resolve()
        if found != self.package_dir.resolve():
            raise LabError(
                f"this process already runs {self.package} from {found}; start another one for {self.package_dir}"
            )

    def isolated(self, alias: str, name: str) -> ModuleType:
        """Import a submodule under another package name, so that several engines can stand side by side.

        Works for nanoengine, which imports only relatively; the code is the same, only its name differs.
        """
        if self.package == "nanovllm":
            return self.module(name)
        if alias not in sys.modules:
            init = self.package_dir / "__init__.py"
            places = [str(self.package_dir)]
            spec = importlib.util.spec_from_file_location(alias, init, submodule_search_locations=places)
            assert spec is not None and spec.loader is not None
            sys.modules[alias] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[alias])
        return importlib.import_module(f"{alias}.{name}")

    # ---- running it --------------------------------------------------------------------------------------

    def config_options(self) -> set[str]:
        config = self.module("config").Config
        return {field.name for field in dataclasses.fields(config)} - {"model", "hf_config", "eos"}

    def has_option(self, name: str) -> bool:
        return name in self.config_options()

    def require_options(self, names: set[str]) -> None:
        """LabError for the first option this engine lacks; upstream would drop it without a word."""
        for name in sorted(names - self.config_options()):
            raise self.missing_option(name)

    def missing_option(self, name: str) -> LabError:
        """The error for an option that this engine does not have; it names the patch that brings it."""
        patch = PATCH_OF_OPTION.get(name)
        if patch and self.kind != "upstream":
            fix = f"it comes with patch {patch}: git -C {self.root} apply {PATCHES / (patch + '.patch')}"
        else:
            fix = "drive nanoengine instead (leave --source out)"
        return LabError(f"the engine in {self.root} has no option {name}; {fix}")

    def create_engine(self, model: Path | str, **options: Any) -> EngineDriver:
        """Load `model` into a live engine of this source; options are those of its Config."""
        options = {name: value for name, value in options.items() if value is not None}
        if self.kind == "upstream":
            options = self._upstream_options(options)
        self.require_options(set(options))
        engine_class = self.module("engine.llm_engine").LLMEngine
        refusals = self._refusals()
        try:
            return EngineDriver(engine_class(str(model), **options), self)
        except refusals as error:
            raise LabError(str(error)) from error

    def _refusals(self) -> tuple[type[Exception], ...]:
        if self.kind == "upstream":
            return (AssertionError,)
        return (self.module("errors").EngineError,)

    def _upstream_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Upstream runs on CUDA with flash-attn and has no such choices: drop what it does anyway, refuse the rest."""
        import torch

        if not torch.cuda.is_available() or options.get("device") == "cpu":
            raise MissingPrerequisite(
                "upstream nano-vLLM runs on a CUDA device only; its scheduler runs on CPU (cpu_scheduler.py)"
            )
        implied = {"device": ("auto", "cuda"), "dtype": ("auto",), "attention_backend": ("auto", "flash_attn")}
        for name, allowed in implied.items():
            if options.get(name, allowed[0]) not in allowed:
                choices = " or ".join(allowed)
                raise LabError(f"upstream nano-vLLM cannot run with {name}={options[name]!r}; it allows {choices}")
        return {name: value for name, value in options.items() if name not in implied}


def resolve(path: Path | str | None = None) -> EngineSource:
    """The engine to drive: `path`, else $NANO_DIR if that directory exists, else the bundled one."""
    if path is None:
        from_env = os.environ.get("NANO_DIR")
        if not from_env or not Path(from_env).is_dir():
            return EngineSource("bundled", BUNDLED_ROOT, "nanoengine")
        path = from_env
    root = Path(path).expanduser().resolve()
    if root == BUNDLED_ROOT.resolve():
        return EngineSource("bundled", root, "nanoengine")
    for kind, package in (("working-copy", "nanoengine"), ("upstream", "nanovllm")):
        if (root / package / "engine" / "scheduler.py").is_file():
            return EngineSource(kind, root, package)  # type: ignore[arg-type]
    seen = "does not exist" if not root.exists() else "holds neither nanoengine/ nor nanovllm/"
    raise LabError(
        f"--source {path} is no engine: it {seen}. "
        "Make a working copy with `python scripts/e2e/engine_source.py init`, "
        "give a clone of nano-vLLM, or leave --source out for the bundled engine."
    )
