"""Shapes of models: their parameters are those published; what a token keeps; configs, names and errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardflow.compiler.facts import Places
from shardflow.compiler.shapes import KNOWN, ShapeError, shape_named, shape_of_config

PUBLISHED = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "codellama-34b": 33_743_970_304,
    "llama-2-70b": 68_976_648_192,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "deepseek-v3": 671_026_419_200,
    "deepseek-r1": 671_026_419_200,
    "kimi-k2": 1_026_408_232_448,
}
"""Elements of the published weights, each tensor once (Gemma 3 without its vision tower, DeepSeek without its
multi-token prediction)."""


def test_every_known_model_is_tested() -> None:
    assert set(KNOWN) == set(PUBLISHED)


@pytest.mark.parametrize("name", KNOWN)
def test_a_shape_has_the_published_parameters(name: str) -> None:
    assert KNOWN[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen3-30b-a3b", 3.35), ("qwen3-235b-a22b", 22.1), ("deepseek-v3", 37.5)]
)
def test_a_sparse_model_has_the_active_parameters_of_its_name(name: str, billions: float) -> None:
    assert KNOWN[name].active_parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("llama-2-7b", 524_288), ("llama-3.1-8b", 131_072), ("llama-3.1-70b", 327_680), ("deepseek-v3", 70_272)],
)
def test_a_token_keeps_as_many_bytes(name: str, kept: int) -> None:
    assert KNOWN[name].kv_bytes(2) == kept


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-Math-7B", "qwen2.5-7b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-70B", "llama-3.1-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
        ("codellama/CodeLlama-13b-hf", "llama-2-13b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "smollm2-1.7b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
    ],
)
def test_a_model_is_found_by_what_a_flow_calls_it(path: str, name: str) -> None:
    assert shape_named(path) is KNOWN[name]


def test_an_unknown_model_says_how_to_give_its_shape() -> None:
    with pytest.raises(ShapeError, match=r"`you/llama-3.1-9b` isn't known \(`llama-3.1-8b` is\): give a directory"):
        shape_named("you/llama-3.1-9b")
    with pytest.raises(ShapeError, match=r"`nonsense` isn't known: give a directory that holds its config.json"):
        shape_named("nonsense", Places(()))


# ---------------------------------------------------------------- configs

QWEN = {
    "model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
MOE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "head_dim": 128,
    "num_key_value_heads": 4, "intermediate_size": 6144, "vocab_size": 151936, "tie_word_embeddings": False,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
}  # fmt: skip
MLA = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "vocab_size": 129280, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "topk_method": "noaux_tc", "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}


@pytest.mark.parametrize(("config", "name"), [(QWEN, "qwen2.5-0.5b"), (MOE, "qwen3-30b-a3b"), (MLA, "deepseek-v3")])
def test_a_config_gives_the_same_as_the_table(config: dict[str, Any], name: str) -> None:
    assert shape_of_config(config, name).parameters == PUBLISHED[name]
    assert shape_of_config(config, name).kv_bytes() == KNOWN[name].kv_bytes()


def test_other_spellings_of_a_config() -> None:
    shape = shape_of_config(GPT2, "gpt2")
    assert (shape.layers, shape.kv_heads, shape.ffn, shape.gated, shape.tied) == (12, 12, 3072, False, True)
    pictures = shape_of_config({"model_type": "gemma3", "text_config": {**QWEN, "model_type": "gemma3_text"}})
    assert pictures.norms == 4 and pictures.head_norms


def test_a_directory_comes_before_the_table(tmp_path: Path) -> None:
    folder = tmp_path / "llama-3.1-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN))
    assert shape_named("llama-3.1-8b", Places((tmp_path,))).layers == 24
    assert shape_of_config(folder).name == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"hidden_size": 8}', "gives no shape: `num_hidden_layers` is missing"),
        (json.dumps({**QWEN, "vocab_size": "many"}), "`vocab_size` is `many`; it is a whole number above 0"),
        (json.dumps({**QWEN, "hidden_size": True}), "`hidden_size` is `True`"),
        ("{", "config.json` is no JSON"),
        ("[]", "config.json` holds no object"),
    ],
)
def test_a_config_without_a_shape_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ShapeError, match=said):
        shape_of_config(tmp_path)
