"""Shapes of well-known models, as in their published config.json."""

from dataclasses import replace

from .data import Experts, Latent, ModelShape


def _llama(
    name: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int, tied: bool = False
) -> ModelShape:
    return ModelShape(name, layers, hidden, heads, kv, hidden // heads, ffn, vocab, tied)


def _qwen2(name: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int, tied: bool) -> ModelShape:
    return ModelShape(name, layers, hidden, heads, kv, hidden // heads, ffn, vocab, tied, qkv_bias=True)


def _qwen3(name: str, layers: int, hidden: int, heads: int, ffn: int, tied: bool = False, kv: int = 8) -> ModelShape:
    return ModelShape(name, layers, hidden, heads, kv, 128, ffn, 151936, tied, head_norms=True)


def _gemma(
    name: str, layers: int, hidden: int, heads: int, kv: int, head_dim: int, ffn: int, vocab: int, head_norms: bool
) -> ModelShape:
    return ModelShape(name, layers, hidden, heads, kv, head_dim, ffn, vocab, tied=True, norms=4, head_norms=head_norms)


LLAMA3, LLAMA2, GEMMA2, GEMMA3 = 128256, 32000, 256000, 262144

DEEPSEEK_V3 = ModelShape(
    "deepseek-v3", 61, 7168, 128, 128, 192, 18432, 129280,
    experts=Experts(256, 8, 2048, shared=2048, dense=3, bias=True), latent=Latent(1536, 512, 64, 128, 128),
)  # fmt: skip

KIMI_K2 = replace(
    DEEPSEEK_V3, name="kimi-k2", heads=64, kv_heads=64, vocab=163840,
    experts=Experts(384, 8, 2048, shared=2048, dense=1, bias=True),
)  # fmt: skip


SHAPES = (
    _llama("llama-3.2-1b", 16, 2048, 32, 8, 8192, LLAMA3, tied=True),
    _llama("llama-3.2-3b", 28, 3072, 24, 8, 8192, LLAMA3, tied=True),
    _llama("llama-3.1-8b", 32, 4096, 32, 8, 14336, LLAMA3),
    _llama("llama-3.1-70b", 80, 8192, 64, 8, 28672, LLAMA3),
    _llama("llama-3.1-405b", 126, 16384, 128, 8, 53248, LLAMA3),
    _llama("llama-2-7b", 32, 4096, 32, 32, 11008, LLAMA2),
    _llama("llama-2-13b", 40, 5120, 40, 40, 13824, LLAMA2),
    _llama("codellama-34b", 48, 8192, 64, 8, 22016, LLAMA2),
    _llama("llama-2-70b", 80, 8192, 64, 8, 28672, LLAMA2),
    _llama("mistral-7b", 32, 4096, 32, 8, 14336, LLAMA2),
    _llama("mistral-7b-v0.3", 32, 4096, 32, 8, 14336, 32768),
    _llama("smollm2-135m", 30, 576, 9, 3, 1536, 49152, tied=True),
    _llama("smollm2-360m", 32, 960, 15, 5, 2560, 49152, tied=True),
    _llama("smollm2-1.7b", 24, 2048, 32, 32, 8192, 49152, tied=True),
    _qwen2("qwen2.5-0.5b", 24, 896, 14, 2, 4864, 151936, True),
    _qwen2("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, 151936, True),
    _qwen2("qwen2.5-3b", 36, 2048, 16, 2, 11008, 151936, True),
    _qwen2("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, False),
    _qwen2("qwen2.5-14b", 48, 5120, 40, 8, 13824, 152064, False),
    _qwen2("qwen2.5-32b", 64, 5120, 40, 8, 27648, 152064, False),
    _qwen2("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064, False),
    _qwen3("qwen3-0.6b", 28, 1024, 16, 3072, tied=True),
    _qwen3("qwen3-1.7b", 28, 2048, 16, 6144, tied=True),
    _qwen3("qwen3-4b", 36, 2560, 32, 9728, tied=True),
    _qwen3("qwen3-8b", 36, 4096, 32, 12288),
    _qwen3("qwen3-14b", 40, 5120, 40, 17408),
    _qwen3("qwen3-32b", 64, 5120, 64, 25600),
    replace(_qwen3("qwen3-30b-a3b", 48, 2048, 32, 6144, kv=4), experts=Experts(128, 8, 768)),
    replace(_qwen3("qwen3-235b-a22b", 94, 4096, 64, 12288, kv=4), experts=Experts(128, 8, 1536)),
    _gemma("gemma-2-2b", 26, 2304, 8, 4, 256, 9216, GEMMA2, False),
    _gemma("gemma-2-9b", 42, 3584, 16, 8, 256, 14336, GEMMA2, False),
    _gemma("gemma-2-27b", 46, 4608, 32, 16, 128, 36864, GEMMA2, False),
    _gemma("gemma-3-1b", 26, 1152, 4, 1, 256, 6912, GEMMA3, True),
    _gemma("gemma-3-4b", 34, 2560, 8, 4, 256, 10240, 262208, True),
    _gemma("gemma-3-12b", 48, 3840, 16, 8, 256, 15360, 262208, True),
    _gemma("gemma-3-27b", 62, 5376, 32, 16, 128, 21504, 262208, True),
    DEEPSEEK_V3,
    replace(DEEPSEEK_V3, name="deepseek-r1"),
    KIMI_K2,
)

KNOWN = {shape.name: shape for shape in SHAPES}
"""By name, in lower case, as `lookup.plain_name` leaves it."""

SAME = {
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "llama-2-34b": "codellama-34b",
    "mistral-7b-v0.1": "mistral-7b",
    "mistral-7b-v0.2": "mistral-7b",
    "deepseek-r1-distill-qwen-1.5b": "qwen2.5-1.5b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.1-70b",
}
"""Models with the shape of another (its size in the vocabulary may differ by a little)."""
