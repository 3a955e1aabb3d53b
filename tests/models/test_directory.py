"""What check_model_dir refuses, and what describe_model says."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nanolab.errors import LabError
from nanolab.models import check_model_dir, describe_model, make_tiny
from nanolab.models.directory import MARK, PARTIAL
from nanolab.models.safetensors_file import INDEX_NAME, read_header


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def overwrite(path: Path, data: bytes, at: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def rewrite_header(path: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def shrink_norm(header: dict[str, dict[str, object]]) -> None:
    header["model.norm.weight"]["shape"] = [127]


WEIGHTS = "model.safetensors"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), r"has no tokenizer\.json.*Make it again"),
    "no config": (lambda d: (d / "config.json").unlink(), r"has no config\.json"),
    "no weights": (lambda d: (d / WEIGHTS).unlink(), r"holds no weights: neither model\.safetensors nor an index"),
    "another architecture": (lambda d: edit_config(d, model_type="llama"), r"model_type 'llama'; the lab runs 'qwen3'"),
    "mixture of experts": (lambda d: edit_config(d, model_type="qwen3_moe"), r"model_type 'qwen3_moe'"),
    "config not JSON": (lambda d: (d / "config.json").write_text("{"), r"config\.json is not valid JSON"),
    "tokenizer cut": (lambda d: truncate(d / "tokenizer.json", 5000), r"tokenizer\.json is not valid JSON"),
    "tokenizer config not JSON": (
        lambda d: (d / "tokenizer_config.json").write_text("{"), r"tokenizer_config\.json is not valid JSON",
    ),
    "mark not JSON": (
        lambda d: ((d / MARK).write_text("{"), (d / "config.json").unlink()),
        r"Make it again: .*--preset tiny --out",
    ),
    "config not an object": (lambda d: (d / "config.json").write_text("[]"), r"config\.json holds a list"),
    "weights cut": (
        lambda d: truncate(d / WEIGHTS, 1_000_000),
        r"not a whole safetensors file: it holds 1,000,000 bytes where its header asks for 1,712,136",
    ),
    "header cut": (lambda d: truncate(d / WEIGHTS, 100), r"100 bytes cannot hold the announced header"),
    "empty weights": (lambda d: truncate(d / WEIGHTS, 0), r"0 bytes cannot hold"),
    "header length absurd": (lambda d: overwrite(d / WEIGHTS, b"\xff" * 8), r"cannot hold the announced header"),
    "header not JSON": (lambda d: overwrite(d / WEIGHTS, b"!!!!", at=8), r"the header is not valid"),
    "a shape that cannot be": (
        lambda d: rewrite_header(d / WEIGHTS, shrink_norm),
        r"model\.norm\.weight of shape \[127\] cannot fill 256 bytes",
    ),
    "bytes too many": (
        lambda d: (d / WEIGHTS).write_bytes((d / WEIGHTS).read_bytes() + b"x"), r"it holds 1,712,137 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(tiny_model: Path, tmp_path: Path, damage: str) -> None:
    directory = tmp_path / "m"
    shutil.copytree(tiny_model, directory)
    check_model_dir(directory)
    act, words = DAMAGES[damage]
    act(directory)
    with pytest.raises(LabError, match=words) as caught:
        check_model_dir(directory)
    assert str(directory) in caught.value.message
    assert "python scripts/e2e/" in caught.value.message
    with pytest.raises(LabError):
        describe_model(directory)


def test_a_missing_directory_names_both_ways_on(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"does not exist.*download_model\.py.*make_model\.py"):
        check_model_dir(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="is not a directory"):
        check_model_dir(tmp_path / "file")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "m", shards=3)
    (directory / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(LabError, match=r"names 3 files, of which 1 are missing: model-00002-of-00003\.safetensors"):
        check_model_dir(directory)
    (directory / INDEX_NAME).write_text("{}")
    with pytest.raises(LabError, match="has no weight_map"):
        check_model_dir(directory)


def test_an_interrupted_download_says_how_to_go_on(tiny_model: Path, tmp_path: Path) -> None:
    directory = tmp_path / "m"
    shutil.copytree(tiny_model, directory, ignore=shutil.ignore_patterns(MARK, WEIGHTS))
    (directory / PARTIAL).mkdir()
    with pytest.raises(LabError, match=r"interrupted; the same command resumes it: .*--weights"):
        check_model_dir(directory)


def test_a_model_is_described_by_its_bytes(tiny_model: Path, tmp_path: Path) -> None:
    facts = describe_model(tiny_model)
    assert facts == {
        "name": "tiny",
        "config_sha256": hashlib.sha256((tiny_model / "config.json").read_bytes()).hexdigest(),
        "weights_sha256": hashlib.sha256((tiny_model / WEIGHTS).read_bytes()).hexdigest(),
        "synthetic": True,
    }
    unmarked = tmp_path / "Qwen3-0.6B"
    shutil.copytree(tiny_model, unmarked, ignore=shutil.ignore_patterns(MARK))
    assert describe_model(unmarked) == {**facts, "name": "Qwen3-0.6B", "synthetic": False}


def test_changed_weights_are_hashed_again(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "m")
    first = describe_model(directory)["weights_sha256"]
    make_tiny(directory, seed=1)
    assert describe_model(directory)["weights_sha256"] != first


def test_shards_are_described_by_all_their_files(tmp_path: Path) -> None:
    one = describe_model(make_tiny(tmp_path / "one", shards=2))
    other = describe_model(make_tiny(tmp_path / "other", seed=1, shards=2))
    assert one["weights_sha256"] != other["weights_sha256"]
    assert one["config_sha256"] == other["config_sha256"]


def test_a_header_lists_the_tensors(tiny_model: Path) -> None:
    header = read_header(tiny_model / WEIGHTS)
    assert header["model.embed_tokens.weight"].shape == (512, 128)
    assert {tensor.dtype for tensor in header.values()} == {"BF16"}
    assert len(header) == 1 + 4 * 11 + 1
