"""Options and model directories that cannot work: each is named, with the way out."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanoengine import LLM, ConfigError, ModelError
from nanoengine.config import Config, rope_parameters

Make = Callable[..., LLM]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_num_seq": 4}, r"unknown option max_num_seq; this engine knows: .*max_num_seqs"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"num_kvcache_blocks": 0}, "num_kvcache_blocks is 0"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5"),
        ({"device": "tpu"}, "device is 'tpu'; choose one of auto, cuda, cpu"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size is 3, but 4 query heads and 2 KV heads"),
        ({"attention_backend": "flash_attn"}, "'flash_attn' cannot run here: it needs a CUDA device"),
        ({"scheduling_policy": "fair"}, "scheduling_policy is 'fair'; choose one of prefill_first, balanced"),
    ],
)
def test_bad_options_name_value_and_limit(make_engine: Make, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_engine(**options)


def test_config_is_frozen(tiny_model: Path) -> None:
    config = Config.create(tiny_model, device="cpu")
    with pytest.raises(AttributeError):
        config.max_num_seqs = 3  # type: ignore[misc]


def test_a_page_size_the_backend_cannot_use_is_named() -> None:
    from nanoengine.layers.attention import why_not

    assert why_not("flash_attn", "cuda", 16) == "kvcache_block_size is 16, and it needs a multiple of 256"
    assert why_not("triton", "cuda", 24) == "kvcache_block_size is 24, and it needs a multiple of 16"
    assert why_not("torch", "cpu", 7) is None


@pytest.fixture
def broken(tiny_model: Path, tmp_path: Path) -> Path:
    """A private copy of the tiny model to damage."""
    return Path(shutil.copytree(tiny_model, tmp_path / "broken"))


def load(directory: Path) -> None:
    LLM(str(directory), device="cpu", num_kvcache_blocks=4, max_model_len=64)


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def weights_file(directory: Path) -> Path:
    (path,) = directory.glob("*.safetensors")
    return path


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load(tmp_path / "nothing")


def test_directory_without_config(broken: Path) -> None:
    (broken / "config.json").unlink()
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        load(broken)


def test_half_written_config(broken: Path) -> None:
    (broken / "config.json").write_text('{"model_type": "qw')
    with pytest.raises(ModelError, match="not valid JSON"):
        load(broken)


def test_another_architecture(broken: Path) -> None:
    edit_config(broken, model_type="llama")
    with pytest.raises(ModelError, match="model_type 'llama'; this engine runs 'qwen3'"):
        load(broken)


def test_weights_whose_shapes_disagree(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    edit_config(broken, intermediate_size=config["intermediate_size"] * 2)
    with pytest.raises(ModelError, match=r"contradicts config\.json: the model needs shape"):
        load(broken)


def test_a_shape_that_would_broadcast_is_refused_too(broken: Path) -> None:
    path = weights_file(broken)
    tensors = load_file(path)
    tensors["model.norm.weight"] = torch.ones(1, dtype=tensors["model.norm.weight"].dtype)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.norm\.weight contradicts"):
        load(broken)


def test_truncated_weights(broken: Path) -> None:
    path = weights_file(broken)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ModelError, match="damaged or truncated"):
        load(broken)


def test_missing_and_superfluous_tensors(broken: Path) -> None:
    path = weights_file(broken)
    tensors = load_file(path)
    gone = tensors.pop("model.layers.0.mlp.up_proj.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 tensors, among them model\.layers\.0\.mlp\.up_proj\.weight"):
        load(broken)
    tensors |= {"model.layers.0.mlp.up_proj.weight": gone, "model.layers.0.mlp.extra.weight": gone.clone()}
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"mlp\.extra\.weight that this architecture has no place for"):
        load(broken)


def test_sharded_files_load_like_one(tiny_model: Path, broken: Path, make_engine: Make) -> None:
    path = weights_file(broken)
    tensors = load_file(path)
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, broken / shard, metadata={"format": "pt"})
    path.unlink()
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    (broken / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    whole = make_engine().model_runner.model.state_dict()
    sharded = LLM(str(broken), device="cpu", dtype="float32", num_kvcache_blocks=4, max_model_len=64)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in sharded.model_runner.model.state_dict().items())
    sharded.exit()
    (broken / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"names model-00002-of-00002\.safetensors, which .* lacks"):
        load(broken)


def test_untied_embeddings(broken: Path) -> None:
    path = weights_file(broken)
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 2
    save_file(tensors, path, metadata={"format": "pt"})
    edit_config(broken, tie_word_embeddings=False)
    engine = LLM(str(broken), device="cpu", num_kvcache_blocks=4, max_model_len=64)
    model = engine.model_runner.model
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight * 2)
    engine.exit()


def test_rope_settings_under_their_old_and_new_names() -> None:
    class Old:
        rope_theta = 1e6
        rope_scaling = None

    class New:
        rope_parameters = {"rope_theta": 5e5, "rope_type": "default"}  # noqa: RUF012

    assert rope_parameters(Old())["rope_theta"] == 1e6
    assert rope_parameters(New())["rope_theta"] == 5e5


def test_a_rope_type_that_is_not_implemented_is_refused(broken: Path) -> None:
    edit_config(broken, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6})
    with pytest.raises(ModelError, match="rope_type 'linear'"):
        load(broken)
