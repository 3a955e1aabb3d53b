"""What a GPU host can lack, played on CPU: each lack is named with its numbers, and with the way out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nanoengine import LLM, ConfigError, SamplingParams
from nanoengine.engine.cuda_graph import DecodeGraphs
from nanoengine.engine.device_memory import explained
from nanoengine.layers import attention

Make = Callable[..., LLM]
GIB = 2**30


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A host with a Hopper GPU, as far as the choice of a backend asks."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(attention, "import_module", lambda name: None)
    return monkeypatch


def test_a_gpu_that_is_too_old_is_named(hopper: pytest.MonkeyPatch) -> None:
    assert attention.choose_backend("auto", "cuda", 256).name == "triton"
    hopper.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    choice = attention.choose_backend("auto", "cuda", 256)
    assert choice.name == "torch"
    assert "not triton: this GPU has compute capability 7.5, and it needs 8.0 (Ampere) or newer" in choice.reason
    with pytest.raises(ConfigError, match=r"capability 7\.5.*'auto' would take 'torch' here"):
        attention.choose_backend("flash_attn", "cuda", 256)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            ImportError("flash_attn_2_cuda.so: undefined symbol: _ZN3c10"),
            "does not load .*undefined symbol.* rebuild it",
        ),
        (ModuleNotFoundError("No module named 'einops'", name="einops"), "does not load .*einops"),
        (ModuleNotFoundError("No module named 'flash_attn'", name="flash_attn"), "flash_attn is not installed"),
    ],
)
def test_a_flash_attn_that_does_not_load(hopper: pytest.MonkeyPatch, error: Exception, says: str) -> None:
    def load(name: str) -> None:
        if name == "flash_attn":
            raise error

    hopper.setattr(attention, "import_module", load)
    with pytest.raises(ConfigError, match=says):
        attention.choose_backend("flash_attn", "cuda", 256)
    assert attention.choose_backend("auto", "cuda", 256).name == "triton"


def test_a_page_size_that_the_backend_cannot_use(hopper: pytest.MonkeyPatch) -> None:
    says = "kvcache_block_size is 48, and it needs a multiple of 256; 'auto' would take 'triton' here"
    with pytest.raises(ConfigError, match=says):
        attention.choose_backend("flash_attn", "cuda", 48)
    assert attention.choose_backend("auto", "cuda", 24).name == "torch"


def test_the_torch_backend_cannot_be_captured_and_says_why_it_was_chosen(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nanoengine.engine.model_runner import ModelRunner

    engine = make_engine(attention_backend="torch")
    config = engine.config.replace(device="cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(ConfigError, match=r"set enforce_eager=True \(not triton: this GPU has .* 7\.5"):
        ModelRunner(config.replace(attention_backend="auto"))


def test_too_little_memory_for_one_block(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_engine().model_runner
    runner.config = runner.config.replace(device="cuda", gpu_memory_utilization=0.5)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 * GIB, 8 * GIB))
    stats = {"allocated_bytes.all.peak": 0, "allocated_bytes.all.current": 0}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: stats)
    with pytest.raises(
        ConfigError, match=r"one KV block needs .* MiB but -1024 MiB are left of 8192 MiB \(3072 MiB free\)"
    ):
        runner.blocks_that_fit()


def test_running_out_of_memory_is_explained_also_when_another_error_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (GIB // 4, 8 * GIB))

    def broken_capture() -> None:
        try:
            raise torch.OutOfMemoryError("tried to allocate 2 GiB")
        finally:
            raise RuntimeError("capture was invalidated")

    says = r"ran out while capturing \(256 of 8192 MiB free\); set enforce_eager=True"
    with pytest.raises(ConfigError, match=says), explained("capturing", "set enforce_eager=True"):
        broken_capture()
    with pytest.raises(RuntimeError, match="something else"), explained("capturing", "nothing"):
        raise RuntimeError("something else")


def outputs(engine: LLM) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    return [found["token_ids"] for found in engine.generate([[1, 2, 3], [4, 5]], params, use_tqdm=False)]


def test_out_of_memory_during_capture_leaves_a_working_eager_engine(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(max_num_seqs=8)
    wanted = outputs(engine)

    def capture(self: DecodeGraphs, size: int, *_: Any) -> None:
        if size < 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.graphs[size] = None  # type: ignore[assignment]

    monkeypatch.setattr(DecodeGraphs, "capture", capture)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (GIB // 8, 8 * GIB))
    runner = engine.model_runner
    runner.enforce_eager = False
    says = r"after 2 of 4 decode graphs \(now 128 of 8192 MiB free\): this engine runs eagerly.*max_num_seqs \(8\)"
    with pytest.warns(RuntimeWarning, match=says):
        runner.capture_graphs()
    assert (runner.enforce_eager, runner.config.enforce_eager, runner.graph_bs) == (True, True, [])
    assert not runner.decode_graphs.graphs
    assert outputs(engine) == wanted


def test_another_error_during_capture_is_not_swallowed(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()

    def capture(*_: Any) -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(DecodeGraphs, "capture", capture)
    engine.model_runner.enforce_eager = False
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.model_runner.capture_graphs()
