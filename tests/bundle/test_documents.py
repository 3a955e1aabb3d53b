"""CHECKPOINTS.md and VALIDATION.md say what pages and blocks say, and the ones at the root are current."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from bundle_lab import load_program, write
from click.testing import CliRunner

from nanolab.bundle import documents, validation
from nanolab.errors import LabError
from nanolab.evidence import repo_root
from nanolab.manual import commands
from nanolab.manual.blocks import BlockStore
from nanolab.manual.texts import Language

COMMANDS = """# Two sections.

# tier: cpu
# block: walk-A
# --8<-- [start:walk]
source env.sh
python walk.py --out runs/walk-A.json
# --8<-- [end:walk]

# tier: gpu reason=在 GPU 上跑 | runs on the GPU
# block: walk-A-gpu
# --8<-- [start:walk-gpu]
python walk.py --gpu
# --8<-- [end:walk-gpu]
"""
SETUP = """# 5.1 {#setup}

| 项目 | 参照值 |
| --- | --- |
| 驱动 | 535 |
| GPU | NVIDIA A800-SXM4-80GB；1 张 |

text
"""
PAGE = """---
title: 检查点
---

# 检查点 {#checkpoints}

## 5.2 案例 {#stage-5-2}

=== "CPU"

    ```bash
    --8<-- "docs/commands/5-2.sh:walk"
    ```

```block id="walk-A" fields="steps"
```

```block id="walk-A-gpu"
```

共 `#!value walk-A steps` 步，误差 `#!value walk-A max_abs|.1e`，GPU 上 `#!value walk-A-gpu steps`。

??? failure "卡住时"
    先看 [5.1](ch5/5-1-setup.md#setup)，不看[以后](ch5/later.md#x)。

    - 再看[这里](#stage-5-2)。

```figure id="5-1"
```

```text
## 不是标题 {#x}
```
"""
BLOCK: dict[str, Any] = {
    "schema": "nanolab-block-1",
    "id": "walk-A",
    "title": {"zh": "案例 A：三步", "en": "Case A: three steps"},
    "check": "PASS",
    "evidence": "cpu-engine",
    "command": ["python", "walk.py"],
    "started_at": "2026-11-30T12:00:00Z",
    "duration_s": 1.25,
    "engine": {"kind": "bundled", "package": "nanoengine", "commit": None, "tree_sha256": "a" * 64, "patches": []},
    "model": {"name": "tiny", "config_sha256": "b" * 64, "weights_sha256": "c" * 64, "synthetic": True},
    "device": {"kind": "cpu", "name": "x86_64", "count": 2, "driver": None, "cuda": None},
    "versions": {
        **{"python": "3.11.2", "torch": "2.13.0", "triton": None, "flash_attn": None},
        **{"transformers": "5.17.0", "numpy": "2.4.6", "nanolab": "0.1.0"},
    },
    "git": {"commit": "d" * 40, "dirty": False},
    "sources_sha256": {"walk.py": hashlib.sha256(b"walk\n").hexdigest()},
    "config": {},
    "result": {"steps": 3, "max_abs": 0.000123},
    "volatile": [],
    "notes": [],
}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    write(
        tmp_path,
        {
            "walk.py": "walk\n",
            "docs/commands/5-2.sh": COMMANDS,
            "docs/evidence/walk-A.json": json.dumps(BLOCK),
            "docs/zh/checkpoints.md": PAGE,
            "docs/en/checkpoints.md": "# Checkpoints {#checkpoints}\n\nSee [5.1](ch5/5-1-setup.md).\n",
            "docs/zh/ch5/5-1-setup.md": SETUP,
            "docs/en/ch5/5-1-setup.md": SETUP.replace("项目", "Item")
            .replace("驱动", "Driver")
            .replace("；1 张", "; 1 card"),
        },
    )
    return tmp_path


def add_block(lab: Path, **changes: Any) -> None:
    block = copy.deepcopy(BLOCK) | changes
    write(lab, {f"docs/evidence/{block['id']}.json": json.dumps(block)})


@pytest.mark.parametrize(
    "part",
    [
        "```bash\nsource env.sh\npython walk.py --out runs/walk-A.json\n```",
        "- `walk-A`: PASS · 真实引擎，CPU · 合成权重 · x86_64 · 2026-11-30",
        "- `walk-A-gpu`: PENDING · 待运行 · 需要 GPU",
        "共 `3` 步，误差 `1.2e-04`，GPU 上 `PENDING`。",
        "### 5.2 案例\n",
        "**CPU**",
        "> **卡住时**\n>\n> 先看 [5.1](docs/zh/ch5/5-1-setup.md#setup)，不看以后。",
        "> - 再看[这里](docs/zh/checkpoints.md#stage-5-2)。",
        "[见手册页面](docs/zh/checkpoints.md)",
        "## 不是标题 {#x}",  # inside a fence nothing is touched
        "See [5.1](docs/en/ch5/5-1-setup.md).",
    ],
)
def test_checkpoints_resolves_the_page(lab: Path, part: str) -> None:
    assert part in documents.render(lab)["CHECKPOINTS.md"]


def test_in_the_bundle_links_lead_to_the_built_site(lab: Path) -> None:
    text = documents.render(lab, documents.in_bundle)["CHECKPOINTS.md"]
    assert "[5.1](site/ch5/5-1-setup.html#setup)" in text
    assert "See [5.1](site/en/ch5/5-1-setup.html)." in text


def test_no_page_syntax_is_left(lab: Path) -> None:
    text = documents.render(lab)["CHECKPOINTS.md"].replace("## 不是标题 {#x}", "")
    for mark in ("--8<--", "#!value", "{#", "title:", "=== ", "???", "```block", "```figure"):
        assert mark not in text


def test_validation_tells_what_ran_from_what_waits(lab: Path) -> None:
    text = documents.render(lab)["VALIDATION.md"]
    assert "| x86_64 | `cpu-engine` | 1 | PASS 1 |" in text
    row = next(line for line in text.splitlines() if line.startswith("| `walk-A`:"))
    for part in (
        "案例 A：三步 · Case A: three steps",
        "合成权重 · synthetic weights",
        "| PASS |",
        "torch 2.13.0",
        "2026-11-30",
    ):
        assert part in row
    assert "| `walk-A-gpu` | `docs/commands/5-2.sh`: `walk-gpu` | 在 GPU 上跑 · runs on the GPU |" in text
    assert "| 驱动 · Driver | 535 |" in text
    assert "Not run on the reference environment" in text
    assert "CPU results not recorded yet" not in text


def test_a_gpu_block_counts_for_its_own_device_only(lab: Path) -> None:
    h200 = {"kind": "cuda", "name": "NVIDIA H200", "count": 2, "driver": "570", "cuda": "12.9"}
    add_block(lab, id="walk-A-gpu", evidence="gpu", device=h200)
    text = documents.render(lab)["VALIDATION.md"]
    assert "| NVIDIA H200 × 2 | `gpu` | 1 | PASS 1 |" in text
    assert "Still waiting for a GPU" not in text
    assert "Not run on the reference environment" in text
    add_block(lab, id="walk-A-gpu", evidence="gpu", device=h200 | {"name": "NVIDIA A800-SXM4-80GB"})
    text = documents.render(lab)["VALIDATION.md"]
    assert "Not run on the reference environment" not in text
    assert "1 results were recorded on this GPU model" in text


def test_failures_and_stale_results_are_said(lab: Path) -> None:
    write(lab, {"walk.py": "changed since\n"})
    add_block(lab, check="FAIL")
    text = documents.render(lab)["VALIDATION.md"]
    assert "| FAIL (已过期 · stale) |" in text
    assert "| x86_64 | `cpu-engine` | 1 | FAIL 1 |" in text


def test_a_missing_cpu_result_is_not_said_to_wait_for_a_gpu(lab: Path) -> None:
    (lab / "docs/evidence/walk-A.json").unlink()
    text = documents.render(lab)["VALIDATION.md"]
    after = text[text.index("CPU results not recorded yet") :]
    assert "`walk-A` | `docs/commands/5-2.sh`: `walk`" in after
    assert "No result block has been recorded yet" in text


def test_what_only_a_reader_can_make_is_listed_apart(lab: Path) -> None:
    write(lab, {"docs/commands/6.sh": COMMANDS.replace("tier: gpu", "tier: doc").replace("walk-A", "vllm")})
    text = documents.render(lab)["VALIDATION.md"]
    after = text[text.index("To be made in an environment of your own") :]
    assert "| `vllm-gpu` | `docs/commands/6.sh`: `walk-gpu` |" in after


def test_a_setup_page_without_its_table_is_an_error(lab: Path) -> None:
    write(lab, {"docs/zh/ch5/5-1-setup.md": "# 5.1 {#setup}\n"})
    with pytest.raises(LabError, match="takes the reference host from that table"):
        documents.render(lab)


def test_records_hold_one_entry_a_block(lab: Path) -> None:
    records = validation.summary(BlockStore(lab, commands.load(lab)))
    assert [(r["id"], r["check"]) for r in records] == [("walk-A", "PASS"), ("walk-A-gpu", "PENDING")]
    assert records[0]["device"]["name"] == "x86_64"
    assert records[1]["commands"] == ["5-2:walk-gpu"]


def test_docs_writes_and_checks(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load_program()
    monkeypatch.setattr(program, "repo_root", lambda: lab)
    runner = CliRunner()
    stale = runner.invoke(program.main, ["docs", "--check"])
    assert stale.exit_code == 1
    assert "CHECKPOINTS.md is not current" in stale.output
    assert runner.invoke(program.main, ["docs"]).exit_code == 0
    assert runner.invoke(program.main, ["docs", "--check"]).exit_code == 0
    add_block(lab, check="REVIEW")
    changed = runner.invoke(program.main, ["docs", "--check"])
    assert changed.exit_code == 1
    assert "VALIDATION.md is not current" in changed.output


def test_the_reference_host_is_read_from_both_pages() -> None:
    zh, en = (validation.reference_table(repo_root(), language) for language in Language)
    assert len(zh) == len(en) >= 5
    assert dict(zh)["GPU"].startswith("NVIDIA A800")


@pytest.mark.parametrize("name", documents.NAMES)
def test_the_one_at_the_root_is_current(name: str) -> None:
    root = repo_root()
    written = (root / name).read_text(encoding="utf-8") if (root / name).is_file() else ""
    current = written == documents.render(root)[name]
    assert current, (
        f"{name} is not current: python scripts/maintain/bundle.py docs && python scripts/maintain/bundle.py sums"
    )
