"""env.sh: sourced from anywhere, any number of times, under `set -u`, changing nothing but variables."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nanolab.evidence import repo_root

ENV_SH = repo_root() / "env.sh"
NAMES = (
    "LAB_ROOT", "NANO_DIR", "NANO_COMMIT", "NANO_UPSTREAM_COMMIT", "MODEL_DIR", "MODEL_REVISION", "NANO_LAB_TRACE",
)  # fmt: skip
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A copy of the lab whose path has a space, without a baseline."""
    root = (tmp_path / "my lab").resolve()
    (root / "patches").mkdir(parents=True)
    shutil.copy(ENV_SH, root)
    return root


def shell(script: str, cwd: Path, program: str = "bash", **environment: str) -> dict[str, str]:
    """Run `script`, then report the exported variables; everything printed before that is the key ''."""
    report = 'printf "\\n--\\n"; env'
    done = subprocess.run(
        [program, "-c", f"set -eu\n{script}\n{report}"],
        cwd=cwd, env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    printed, _, exported = done.stdout.partition("\n--\n")
    found = dict(line.partition("=")[::2] for line in exported.splitlines())
    return {"": printed, **{name: found[name] for name in NAMES if name in found}}


def test_what_it_exports(lab: Path) -> None:
    assert shell("source ./env.sh", lab) == {
        "": "",
        "LAB_ROOT": str(lab),
        "NANO_DIR": f"{lab}/engine",
        "NANO_COMMIT": "",
        "NANO_UPSTREAM_COMMIT": "bb823b3e06983d71485a8e1f23715ebd87d98ef8",
        "MODEL_DIR": f"{lab}/models/Qwen3-0.6B",
        "MODEL_REVISION": "c1899de289a04d12100db370d81485cdf75e47ca",
    }


def test_sourcing_again_and_from_elsewhere_changes_nothing(lab: Path, tmp_path: Path) -> None:
    once = shell("source ./env.sh", lab)
    elsewhere = shell('source "$ENV_SH"; source "$ENV_SH"; pwd', tmp_path, ENV_SH=str(lab / "env.sh"))
    assert elsewhere.pop("") == str(tmp_path) + "\n"
    assert elsewhere == {name: value for name, value in once.items() if name}


def test_cdpath_and_pipefail_do_not_disturb_it(lab: Path) -> None:
    script = "set -o pipefail; export CDPATH=/:/tmp; cd patches; source ../env.sh"
    assert shell(script, lab)["LAB_ROOT"] == str(lab)


@pytest.mark.parametrize("form", ['{{"commit": "{0}"}}', '{{\n  "date": "x",\n  "commit" : "{0}",\n  "tree": "y"\n}}'])
def test_the_baseline_commit_is_read(lab: Path, form: str) -> None:
    (lab / "patches" / "baseline.json").write_text(form.format(COMMIT))
    assert shell("source ./env.sh", lab)["NANO_COMMIT"] == COMMIT


def test_this_repository_has_the_commit_of_its_baseline() -> None:
    baseline = repo_root() / "patches" / "baseline.json"
    if not baseline.is_file():
        pytest.skip("patches/baseline.json does not exist yet")
    commit = shell("source ./env.sh", repo_root())["NANO_COMMIT"]
    assert len(commit) == 40
    assert commit in baseline.read_text()


def test_a_choice_exported_before_is_kept(lab: Path) -> None:
    found = shell("source ./env.sh; source ./env.sh", lab, MODEL_DIR="models/tiny", NANO_DIR="/clone")
    assert (found["MODEL_DIR"], found["NANO_DIR"]) == ("models/tiny", "/clone")


def test_another_copy_of_the_lab_in_one_terminal_takes_over(lab: Path, tmp_path: Path) -> None:
    second = tmp_path.resolve() / "second"
    shutil.copytree(lab, second)
    found = shell("source ./env.sh; source ../second/env.sh", lab)
    assert found["LAB_ROOT"] == str(second)
    assert found["NANO_DIR"] == f"{second}/engine"
    assert found["MODEL_DIR"] == f"{second}/models/Qwen3-0.6B"


def test_no_helper_variable_is_left_behind(lab: Path) -> None:
    assert shell("source ./env.sh; compgen -v | grep ^_lab || true", lab)[""] == ""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed here")
def test_zsh_finds_the_root(lab: Path, tmp_path: Path) -> None:
    found = shell('source "$ENV_SH"', tmp_path, program="zsh", ENV_SH=str(lab / "env.sh"))
    assert found["LAB_ROOT"] == str(lab)


@pytest.mark.skipif(shutil.which("dash") is None, reason="dash is not installed here")
def test_another_shell_is_refused_in_words(lab: Path) -> None:
    command = '. ./env.sh; echo "status $?, root [${LAB_ROOT:-}]"'
    done = subprocess.run(["dash", "-c", command], cwd=lab, capture_output=True, text=True, timeout=30, env={})
    assert done.stdout == "status 1, root []\n"
    assert done.stderr == "env.sh works in bash and zsh, and this shell is neither: type `bash`, then `source env.sh`\n"
