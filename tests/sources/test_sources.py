"""Which engine is driven, what it is called in a block, and what is refused."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from nanolab import sources
from nanolab.errors import LabError, MissingPrerequisite
from nanolab.sources import EngineSource, SamplingSpec

UPSTREAM_CONFIG = """
from dataclasses import dataclass

@dataclass
class Config:
    model: str
    max_num_seqs: int = 512
    hf_config: object = None
    eos: int = -1
"""


def forget_upstream() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "nanovllm"]:
        del sys.modules[name]


@pytest.fixture
def upstream(tmp_path: Path) -> EngineSource:
    """A directory laid out like a clone of upstream; only its layout matters here."""
    package = tmp_path / "clone" / "nanovllm"
    (package / "engine").mkdir(parents=True)
    (package / "engine" / "scheduler.py").write_text("")
    (package / "__init__.py").write_text("raise RuntimeError('needs a GPU to be imported')\n")
    (package / "config.py").write_text(UPSTREAM_CONFIG)
    forget_upstream()  # a test with a real clone may have come before
    yield sources.resolve(tmp_path / "clone")
    forget_upstream()
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path / "clone")]


def test_the_default_is_the_bundled_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NANO_DIR", str(tmp_path / "nothing"))
    source = sources.resolve()
    assert (source.kind, source.package) == ("bundled", "nanoengine")
    described = source.describe()
    assert described["package"] == "src/nanoengine"
    assert described["commit"] is None
    assert described["patches"] == [
        "01-step-trace", "02-graph-eager-fallback", "03-fair-scheduler", "04-replica-isolation",
    ]  # fmt: skip


def test_nano_dir_is_taken_when_it_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nanoengine" / "engine").mkdir(parents=True)
    (tmp_path / "nanoengine" / "engine" / "scheduler.py").write_text("")
    monkeypatch.setenv("NANO_DIR", str(tmp_path))
    assert sources.resolve().kind == "working-copy"


@pytest.mark.parametrize(("name", "says"), [("missing", "it does not exist"), ("empty", "holds neither nanoengine/")])
def test_a_source_that_is_no_engine_is_refused(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LabError, match=says) as refusal:
        sources.resolve(tmp_path / name)
    assert "engine_source.py init" in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_a_script_given_no_engine_exits_2(tmp_path: Path, tiny_model: Path, program: object) -> None:
    out = tmp_path / "block.json"
    arguments = ["--case", "A", "--source", str(tmp_path), "--model", str(tiny_model), "--out", str(out)]
    result = CliRunner().invoke(program, arguments)  # type: ignore[arg-type]
    assert result.exit_code == 2
    assert "is no engine" in result.output
    assert not out.exists()


@pytest.fixture
def program() -> object:
    import importlib.util

    path = Path(__file__).parents[2] / "scripts" / "e2e" / "quick_walk.py"
    spec = importlib.util.spec_from_file_location("quick_walk_program", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def test_upstream_is_imported_without_its_init_and_its_lacks_are_named(upstream: EngineSource) -> None:
    assert upstream.kind == "upstream"
    assert upstream.config_options() == {"max_num_seqs"}
    assert upstream.describe()["patches"] == []
    with pytest.raises(LabError, match="no option scheduling_policy; drive nanoengine instead"):
        upstream.require_options({"scheduling_policy"})


def test_upstream_on_cpu_is_pending(upstream: EngineSource, tiny_model: Path) -> None:
    with pytest.raises(MissingPrerequisite, match="runs on a CUDA device only"):
        upstream.create_engine(tiny_model, max_num_seqs=2, device="cpu")


def test_an_unknown_option_of_the_bundled_engine_is_named(tiny_model: Path) -> None:
    with pytest.raises(LabError, match="no option max_seqs"):
        sources.resolve(None).create_engine(tiny_model, max_seqs=2)


def test_two_engines_of_one_name_cannot_share_a_process(tmp_path: Path) -> None:
    import nanoengine  # noqa: F401 - the bundled one is now this process's engine

    (tmp_path / "nanoengine" / "engine").mkdir(parents=True)
    (tmp_path / "nanoengine" / "engine" / "scheduler.py").write_text("")
    with pytest.raises(LabError, match="this process already runs nanoengine"):
        sources.resolve(tmp_path).module("config")


def test_the_driver_says_what_each_step_did(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NANO_DIR", raising=False)
    options = {"device": "cpu", "dtype": "float32", "max_model_len": 128, "num_kvcache_blocks": 8}
    with sources.resolve().create_engine(
        tiny_model, kvcache_block_size=16, max_num_batched_tokens=16, **options
    ) as driver:
        spec = SamplingSpec(max_tokens=2, ignore_eos=True)
        long, short = driver.add(list(range(20)), spec), driver.add([7, 8], spec)
        first = driver.step()
        assert (first.phase, first.num_tokens, first.accepted) == ("prefill", 16, [])  # a middle chunk accepts nothing
        second = driver.step()
        assert [seq for seq, _ in second.accepted] == [long, short]
        assert [(s.total, s.cached, s.scheduled) for s in second.batch] == [(20, 16, 4), (2, 0, 2)]
        assert driver.abort(short)
        assert not driver.abort(short)
        assert driver.finish_reason(short) == "cancelled"
        third = driver.step()
        assert (third.phase, third.finished, driver.finish_reason(long)) == ("decode", [long], "length")
        assert not driver.has_work()
        assert driver.free_blocks == driver.num_blocks
        with pytest.raises(ValueError, match="prompt is empty"):
            driver.add([], spec)
    driver.close()
