"""Teaching models: the same bytes everywhere, logits worth comparing, all or nothing on disk."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from nanolab.errors import LabError
from nanolab.models import PRESETS, check_model_dir, describe_model, make_model, make_tiny, synthetic, weight_bytes
from nanolab.models.directory import MARK
from nanolab.models.safetensors_file import split
from nanolab.models.shapes import QWEN3_0_6B, TINY, with_overrides
from nanolab.models.weights import SyntheticWeights, Tensor, standard_values, to_bfloat16

SCRIPT = Path(__file__).parents[2] / "scripts" / "e2e" / "make_model.py"
# What seed 0 gives on every machine. It changes only when the recipe is changed on purpose.
TINY_SHA256 = "e68b943d36384f647015f72af08f01c88031e8df05fed7d7eef510a63f9974b2"


def contents(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def load(directory: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (safe_open is no dict)
                assert name not in found
                found[name] = file.get_tensor(name)
    return found


def test_the_same_seed_gives_the_same_bytes(tiny_model: Path, tmp_path: Path) -> None:
    again = make_tiny(tmp_path / "again")
    assert contents(again) == contents(tiny_model)
    assert contents(again)["model.safetensors"] == TINY_SHA256


def test_another_seed_gives_other_weights_only(tiny_model: Path, tmp_path: Path) -> None:
    ours, theirs = contents(tiny_model), contents(make_tiny(tmp_path / "other", seed=1))
    assert {name for name in ours if ours[name] != theirs[name]} == {"model.safetensors", MARK}


def test_values_do_not_depend_on_the_order_or_number_drawn() -> None:
    whole = standard_values(7, "a", 1 << 19)
    assert np.array_equal(standard_values(7, "a", 1000), whole[:1000])
    assert not np.array_equal(standard_values(7, "b", 1000), whole[:1000])
    assert not np.array_equal(standard_values(8, "a", 1000), whole[:1000])
    assert abs(float(whole.mean())) < 0.01
    assert abs(float(whole.std()) - 1) < 0.01
    assert float(np.abs(whole).max()) < 3.5


def test_bfloat16_rounds_as_torch_does() -> None:
    values = standard_values(0, "rounding", 100_001, scale=3.0)
    values[:3] = (0.0, 1.00390625, -1.01171875)  # zero and two ties
    ours = torch.from_numpy(to_bfloat16(values).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(ours, torch.from_numpy(values).to(torch.bfloat16))


def test_transformers_loads_every_tensor(tiny_model: Path) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(tiny_model, output_loading_info=True)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype == torch.bfloat16
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.generation_config.eos_token_id == [258, 256]
    assert model.config.eos_token_id == 258
    assert model.config.rope_parameters["rope_theta"] == 1_000_000
    assert model.config.max_position_embeddings == 4096


@torch.inference_mode()
def test_logits_spread_and_survive_bfloat16(tiny_model: Path) -> None:
    """What makes a comparison of logits and of top-1 mean something (weights.py states the aims)."""
    ids = torch.randint(0, 256, (6, 200), generator=torch.Generator().manual_seed(1))
    exact = load(tiny_model, torch.float32)(ids).logits
    rounded = load(tiny_model, torch.bfloat16)(ids).logits.float()
    assert 1.5 < exact.std(-1).mean() < 3.5
    assert 0.4 < exact.softmax(-1).amax(-1).mean() < 0.9
    assert (exact - rounded).norm() / exact.norm() < 0.015
    assert (exact - rounded).abs().max() < 0.5
    assert (exact.argmax(-1) == rounded.argmax(-1)).float().mean() > 0.97
    assert exact.argmax(-1).unique().numel() > 60  # many tokens win, not a favourite few


@torch.inference_mode()
def test_the_first_token_reaches_the_last_position(tiny_model: Path) -> None:
    """A wrong key or value anywhere must show, or tests of the KV cache prove nothing."""
    ids = torch.randint(0, 256, (6, 100), generator=torch.Generator().manual_seed(2))
    changed = ids.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 256
    model = load(tiny_model, torch.float32)
    before, after = model(ids).logits[:, -1], model(changed).logits[:, -1]
    assert ((before - after).norm(dim=-1) / before.norm(dim=-1)).min() > 0.02


@torch.inference_mode()
def test_greedy_text_is_readable_and_not_one_letter(tiny_model: Path) -> None:
    model = load(tiny_model, torch.float32)
    for prompt in (b"Hello", "你好".encode(), b"The sky was"):
        ids = torch.tensor([list(prompt)])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
        written = output[0, ids.shape[1] :].tolist()
        assert len(set(written)) >= 8
        assert all(32 <= token < 127 or token == 258 for token in written)


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_hold_the_same_tensors(tiny_model: Path, tmp_path: Path, shards: int) -> None:
    sharded = make_tiny(tmp_path / "sharded", shards=shards)
    names = sorted(path.name for path in sharded.glob("*.safetensors"))
    assert names == [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == weight_bytes(TINY)
    whole, parts = tensors(tiny_model), tensors(sharded)
    assert index["weight_map"].keys() == whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert torch.equal(load(sharded, torch.float32).lm_head.weight, load(tiny_model, torch.float32).lm_head.weight)
    check_model_dir(sharded)


def test_splitting_keeps_order_and_leaves_no_shard_empty() -> None:
    sizes = [50, 1, 1, 1, 1, 50, 3]
    run = [Tensor(str(i), (size,), lambda: np.zeros(0, np.float32)) for i, size in enumerate(sizes)]
    for shards in range(1, len(sizes) + 1):
        groups = split(run, shards)
        assert len(groups) == shards
        assert all(groups)
        assert [tensor for group in groups for tensor in group] == run


def test_overrides_reach_config_and_weights(tmp_path: Path) -> None:
    directory = make_tiny(
        tmp_path / "m", num_hidden_layers=2, tie_word_embeddings=False, dtype="float32", rope_names="new"
    )
    config = AutoConfig.from_pretrained(directory)
    assert (config.num_hidden_layers, config.tie_word_embeddings, config.dtype) == (2, False, torch.float32)
    assert config.rope_parameters["rope_theta"] == 1_000_000
    assert "rope_theta" not in json.loads((directory / "config.json").read_text())
    found = tensors(directory)
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    assert not torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])
    assert not any(name.startswith("model.layers.2.") for name in found)


def test_a_stored_tied_head_equals_the_embedding(tmp_path: Path) -> None:
    """The published checkpoint of the real model stores both, and so does its synthetic double."""
    found = tensors(make_tiny(tmp_path / "m", stored_head=True))
    assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])


def test_unknown_or_impossible_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown model field 'layers'; known: .*num_hidden_layers"):
        make_tiny(tmp_path / "m", layers=2)
    with pytest.raises(ValueError, match="4 query heads do not divide among 3 KV heads"):
        make_tiny(tmp_path / "m", num_key_value_heads=3)
    with pytest.raises(ValueError, match="'float16'"):
        make_tiny(tmp_path / "m", dtype="float16")
    with pytest.raises(LabError, match="0 shards: give 1 to 46"):
        make_tiny(tmp_path / "m", shards=0)
    with pytest.raises(LabError, match="seed -1"):
        make_tiny(tmp_path / "m", seed=-1)
    with pytest.raises(LabError, match=r"has no tokenizer\.json"):
        make_model(TINY, tmp_path / "m", tokenizer=tmp_path)
    assert not (tmp_path / "m").exists()


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    narrow = with_overrides(TINY, {"vocab_size": 400})
    with pytest.raises(LabError, match="ids go up to 511 and tiny has 400 embedding rows"):
        make_model(narrow, tmp_path / "m", tokenizer=tiny_model)
    assert not (tmp_path / "m").exists()


def test_ids_past_the_byte_tokenizer_decode_to_nothing(tmp_path: Path) -> None:
    """qwen3-0.6b-shape without --tokenizer proposes ids that the byte tokenizer does not have."""
    directory = make_tiny(tmp_path / "m", vocab_size=2048)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert len(tokenizer) == 512
    assert tokenizer.decode([72, 1500, 105]) == "Hi"


def test_the_real_shape_has_the_real_tensors() -> None:
    """Counted from the shape alone: 596 M parameters, and the stored head on top, as published."""
    sizes = {tensor.name: tensor.count for tensor in SyntheticWeights(QWEN3_0_6B, 0).tensors()}
    assert len(sizes) == 2 + 28 * 11 + 1
    assert sum(sizes.values()) == 751_632_384
    assert sum(sizes.values()) - sizes["lm_head.weight"] == 596_049_920
    assert weight_bytes(QWEN3_0_6B) == 2 * 751_632_384


def test_the_real_shapes_config_is_the_published_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_0_6B.config()))
    (tmp_path / "generation_config.json").write_text(json.dumps(QWEN3_0_6B.generation_config()))
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (1024, 3072, 28)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (16, 8, 128)
    assert (config.vocab_size, config.max_position_embeddings, config.tie_word_embeddings) == (151_936, 40_960, True)
    assert (config.rope_parameters["rope_theta"], config.dtype) == (1_000_000, torch.bfloat16)
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == [151_645, 151_643]


def test_the_real_shapes_recipe_on_a_small_double(tmp_path: Path) -> None:
    """28 layers of the real preset, narrow enough for a CPU: same code path, healthy activations."""
    narrow = with_overrides(
        QWEN3_0_6B,
        {
            "hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 64, "vocab_size": 2048, "eos_token_ids": (2001, 2000), "bos_token_id": 2000,
            "memory_ids": (256, 1500), "regular_ids": 2000,
        },
    )  # fmt: skip
    directory = make_model(narrow, tmp_path / "narrow")
    ids = torch.randint(0, 2000, (4, 64), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        exact = load(directory, torch.float32)(ids, output_hidden_states=True)
        rounded = load(directory, torch.bfloat16)(ids).logits.float()
    spread = [float(state.std()) for state in exact.hidden_states[:-1]]
    assert max(spread) / min(spread) < 4  # the stream neither dies nor explodes over 28 layers
    assert (exact.logits - rounded).norm() / exact.logits.norm() < 0.02
    assert (exact.logits.argmax(-1) == rounded.argmax(-1)).float().mean() > 0.94


def test_a_teaching_model_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "m")
    assert describe_model(make_tiny(directory, seed=1))["synthetic"] is True
    assert json.loads((directory / MARK).read_text())["seed"] == 1

    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    with pytest.raises(LabError, match="not a teaching model"):
        make_tiny(foreign)
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]

    (tmp_path / "empty").mkdir()
    check_model_dir(make_tiny(tmp_path / "empty"))


def test_an_interrupted_build_leaves_nothing_and_keeps_the_old(tmp_path: Path) -> None:
    old = contents(make_tiny(tmp_path / "m"))

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    for directory in (tmp_path / "m", tmp_path / "new"):
        with pytest.raises(KeyboardInterrupt):
            make_model(TINY, directory, seed=5, progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert contents(tmp_path / "m") == old


def test_a_full_disk_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(synthetic.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(LabError, match=r"0\.00 GiB free; the weights need 0\.00 GiB"):
        make_tiny(tmp_path / "m")


def test_an_unwritable_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"cannot be written: .*Give another --out"):
        make_tiny(tmp_path / "file" / "m")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_model", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_makes_the_same_model(script: ModuleType, tiny_model: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(script.main, ["--preset", "tiny", "--out", str(tmp_path / "m")])
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "PASS"), result.output
    assert contents(tmp_path / "m") == contents(tiny_model)


def test_the_script_refuses_in_words(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("")
    for arguments, words in (
        (["--preset", "huge", "--out", "m"], "'huge' is not one of"),
        (["--preset", "tiny"], "Missing option '--out'"),
        (["--preset", "tiny", "--out", str(tmp_path)], "not a teaching model"),
        (["--preset", "tiny", "--out", str(tmp_path / "m"), "--shards", "99"], "99 shards"),
    ):
        result = CliRunner().invoke(script.main, arguments)
        assert result.exit_code == 2
        assert words in result.stderr
    assert sorted(PRESETS) == ["qwen3-0.6b-shape", "tiny"]
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
