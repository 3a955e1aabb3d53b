"""The pinned download against a local stand-in hub: whole, interrupted, wrong, unreachable."""

from __future__ import annotations

import importlib.util
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result
from huggingface_hub import constants

from nanolab.models import make_model, make_tiny
from nanolab.models.directory import MARK, PARTIAL
from nanolab.models.download import REPO, REVISION, Difference, check_download, rope_settings
from nanolab.models.hub import git_blob_id
from nanolab.models.shapes import QWEN3_0_6B, TINY
from nanolab.models.synthetic import TOKENIZER_FILES

from .hub_stand_in import LARGE, Hub, serve

SCRIPT = Path(__file__).parents[2] / "scripts" / "e2e" / "download_model.py"
WEIGHTS = "model.safetensors"
CHUNK = 4096


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of the real names: the pinned model's config, a small tokenizer, small weights."""
    directory = make_tiny(tmp_path_factory.mktemp("published") / "tiny")
    files = {path.name: path.read_bytes() for path in directory.iterdir() if path.name != MARK}
    files["config.json"] = json.dumps(QWEN3_0_6B.config(), indent=2).encode()
    files["generation_config.json"] = json.dumps(QWEN3_0_6B.generation_config(), indent=2).encode()
    return files


@pytest.fixture
def hub(published: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    # The library writes chunk by chunk, 10 MB each; the published stand-in weights are smaller than one.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", CHUNK)
    with serve(Hub(REPO, REVISION, dict(published))) as hub:
        yield hub


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("download_model", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(script: ModuleType, hub: Hub, tmp_path: Path):  # type: ignore[no-untyped-def]
    def invoke(*arguments: str, endpoint: str | None = None) -> Result:
        environment = {"HF_ENDPOINT": endpoint or hub.url, "MODEL_REVISION": hub.revision}
        return CliRunner().invoke(script.main, ["--model", str(tmp_path / "model"), *arguments], env=environment)

    return invoke


def last_line(result: Result) -> str:
    return result.stdout.strip().splitlines()[-1]


def test_the_stand_in_has_small_and_large_files(published: dict[str, bytes]) -> None:
    sizes = {name: len(data) for name, data in published.items()}
    assert sizes["config.json"] < LARGE < sizes[WEIGHTS]


def test_without_weights_only_config_and_tokenizer_arrive(run, hub: Hub, tmp_path: Path) -> None:
    result = run()
    assert (result.exit_code, last_line(result)) == (0, "PASS"), result.output
    arrived = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir() if path.is_file()}
    assert arrived == {name: data for name, data in hub.files.items() if name != WEIGHTS}
    assert "length 512" in result.stdout
    assert "'rope_scaling': None" in result.stdout
    assert "'rope_theta': 1000000" in result.stdout


def test_with_weights_everything_arrives_and_nothing_else_stays(run, hub: Hub, tmp_path: Path) -> None:
    result = run("--weights", "--out", str(tmp_path / "block.json"))
    assert (result.exit_code, last_line(result)) == (0, "PASS"), result.output
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == hub.files
    block = json.loads((tmp_path / "block.json").read_text())
    assert block["check"] == "PASS"
    assert block["evidence"] == "static"
    assert block["config"]["revision"] == REVISION
    assert str(tmp_path) not in json.dumps(block)


def test_a_second_run_keeps_what_is_right(run, hub: Hub) -> None:
    assert run("--weights").exit_code == 0
    before = len(hub.gets(WEIGHTS))
    result = run("--weights")
    assert result.exit_code == 0
    assert "already there" in result.stdout
    assert "fetched" not in result.stdout
    assert len(hub.gets(WEIGHTS)) == before


def test_a_cut_connection_is_continued_by_the_same_run(run, hub: Hub, tmp_path: Path) -> None:
    hub.cut_once.add(WEIGHTS)
    result = run("--weights")
    assert (result.exit_code, last_line(result)) == (0, "PASS"), result.output
    half = len(hub.files[WEIGHTS]) // 2 // CHUNK * CHUNK
    assert hub.gets(WEIGHTS) == [None, f"bytes={half}-"]
    assert (tmp_path / "model" / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_an_interrupted_run_is_continued_by_the_next(run, hub: Hub, tmp_path: Path) -> None:
    hub.cut_once.add(WEIGHTS)
    hub.fail_after_cut = 1
    first = run("--weights")
    assert (first.exit_code, last_line(first)) == (4, "PENDING"), first.output
    assert "run the same command again" in first.stderr
    assert not (tmp_path / "model" / WEIGHTS).exists()
    half = len(hub.files[WEIGHTS]) // 2 // CHUNK * CHUNK
    assert [path.stat().st_size for path in (tmp_path / "model" / PARTIAL).iterdir()] == [half]

    second = run("--weights")
    assert (second.exit_code, last_line(second)) == (0, "PASS"), second.output
    assert hub.gets(WEIGHTS)[-1] == f"bytes={half}-"
    assert (tmp_path / "model" / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    assert not (tmp_path / "model" / PARTIAL).exists()


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_wrong_content_is_refused_told_and_fetched_anew(run, hub: Hub, tmp_path: Path, name: str) -> None:
    hub.corrupt_once.add(name)
    first = run("--weights")
    assert (first.exit_code, last_line(first)) == (1, "FAIL"), first.output
    assert name in first.stderr
    assert "published hash" in first.stderr
    assert not (tmp_path / "model" / name).exists()

    second = run("--weights")
    assert (second.exit_code, last_line(second)) == (0, "PASS"), second.output
    assert hub.gets(name) == [None, None]
    assert (tmp_path / "model" / name).read_bytes() == hub.files[name]


def test_a_file_changed_after_the_download_is_replaced(run, hub: Hub, tmp_path: Path) -> None:
    assert run().exit_code == 0
    (tmp_path / "model" / "config.json").write_bytes(hub.files["config.json"].replace(b"1024", b"1025"))
    assert run().exit_code == 0
    assert (tmp_path / "model" / "config.json").read_bytes() == hub.files["config.json"]


def test_an_oversized_remainder_is_started_afresh(run, hub: Hub, tmp_path: Path) -> None:
    hub.cut_once.add(WEIGHTS)
    hub.fail_after_cut = 1
    assert run("--weights").exit_code == 4
    (remainder,) = (tmp_path / "model" / PARTIAL).iterdir()
    remainder.write_bytes(bytes(len(hub.files[WEIGHTS]) + 1))
    assert run("--weights").exit_code == 0
    assert hub.gets(WEIGHTS)[-1] is None


def test_another_revision_than_asked_for_is_refused(run, hub: Hub) -> None:
    hub.served_revision = "0" * 40
    result = run()
    assert (result.exit_code, last_line(result)) == (1, "FAIL")
    assert f"asked for revision {REVISION}, served {'0' * 40}" in result.stderr


def test_a_revision_or_file_that_does_not_exist_is_bad_input(run, hub: Hub) -> None:
    hub.files.pop("generation_config.json")
    result = run()
    assert result.exit_code == 2
    assert "no generation_config.json" in result.stderr
    assert "MODEL_REVISION" in result.stderr


def test_an_unreachable_hub_names_the_offline_way(run) -> None:
    with socket.socket() as unused:  # bound, never listening: connecting is refused
        unused.bind(("127.0.0.1", 0))
        result = run(endpoint=f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert (result.exit_code, last_line(result)) == (4, "PENDING"), result.output
    assert "make_model.py --preset tiny" in result.stderr


def test_a_teaching_model_is_not_overwritten(run, tmp_path: Path) -> None:
    make_tiny(tmp_path / "model")
    before = (tmp_path / "model" / "config.json").read_bytes()
    result = run()
    assert result.exit_code == 2
    assert "teaching model" in result.stderr
    assert (tmp_path / "model" / "config.json").read_bytes() == before


def test_no_token_is_sent(run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "not-a-real-token")
    assert run("--weights").exit_code == 0
    assert hub.authorizations == []


def test_another_shape_fails_by_name(run, hub: Hub) -> None:
    config = {**QWEN3_0_6B.config(), "hidden_size": 2048, "torch_dtype": "float32"}
    hub.files["config.json"] = json.dumps(config).encode()
    result = run()
    assert (result.exit_code, last_line(result)) == (1, "FAIL"), result.output
    assert "hidden_size is 2048; the manual's numbers need 1024" in result.stderr
    assert "dtype is 'float32'" in result.stderr


def test_differences_read_old_and_new_names(tmp_path: Path) -> None:
    for names in ("old", "new"):
        config = replace(QWEN3_0_6B, rope_names=names).config()
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert check_download(tmp_path, weights=False) == []
    (tmp_path / "config.json").write_text(json.dumps(TINY.config()))
    assert Difference("hidden_size", 128, 1024) in check_download(tmp_path, weights=False)
    assert rope_settings(QWEN3_0_6B.config()) == {"rope_scaling": None, "rope_theta": 1000000}


def test_blob_ids_are_gits(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert git_blob_id(tmp_path / "empty") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


def test_the_copied_tokenizer_is_the_given_one(tmp_path: Path, published: dict[str, bytes]) -> None:
    given = tmp_path / "given"
    given.mkdir()
    for name in TOKENIZER_FILES:
        (given / name).write_bytes(published[name] + b"\n")
    made = make_model(TINY, tmp_path / "made", tokenizer=given)
    assert {name: (made / name).read_bytes() for name in TOKENIZER_FILES} == {
        name: published[name] + b"\n" for name in TOKENIZER_FILES
    }
