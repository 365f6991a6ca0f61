"""Tiny random models in Hugging Face directories, with a byte-level tokenizer and a chat template."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> Any:
    """256 bytes, then <bos>, <eos> and nothing to pad with: 258 ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokens, bos_token="<bos>", eos_token="<eos>")
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def make_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A random model of a family (llama, qwen2, qwen3, mistral, gpt2), hidden size 32, 2 layers, float32."""
    torch.manual_seed(seed)
    options: dict[str, Any] = {"vocab_size": 258, "bos_token_id": 256, "eos_token_id": 257, "initializer_range": 0.2}
    if family == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, **options | changes)
        return transformers.GPT2LMHeadModel(config)
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}[family]
    if family == "qwen3":
        shape["head_dim"] = 16
    config = getattr(transformers, f"{name}Config")(**shape | options | changes)
    return getattr(transformers, f"{name}ForCausalLM")(config)


def save(directory: Path, family: str, seed: int = 0, **changes: Any) -> str:
    """Write a tiny model and its tokenizer; random biases and norm weights, so that nothing is trivially right."""
    model = make_model(family, seed, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return str(directory)
