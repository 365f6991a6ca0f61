"""Tiny models, written once per test run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shardflow.runtime.execution.loop import Run
from shardflow.runtime.models import Role, load_role

from . import tiny
from .workshop import Interrupted, Workshop, make_models

# Rope of Llama 3, biases everywhere, a tied head and heads wider than hidden / heads: what real configs vary.
VARIED = {
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
    "head_dim": 16,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}

RoleMaker = Callable[..., Role]


@pytest.fixture(scope="session")
def tiny_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Directories of tiny models by family; "llama_varied" is a Llama with everything unusual."""
    root: Path = tmp_path_factory.mktemp("tiny")
    families: dict[str, tuple[str, dict[str, Any]]] = {
        f: (f, {}) for f in ("llama", "qwen2", "qwen3", "mistral", "gpt2")
    }
    families["llama_varied"] = ("llama", VARIED)
    return {name: tiny.save(root / name, family, **changes) for name, (family, changes) in families.items()}


@pytest.fixture
def make_role(tiny_dirs: dict[str, str]) -> RoleMaker:
    """make_role(family, dtype=float64, kind="causal_lm", **options of load_role)."""

    def make(family: str, dtype: torch.dtype = torch.float64, kind: Any = "causal_lm", **options: Any) -> Role:
        return load_role(kind, tiny_dirs[family], dtype=dtype, **options)

    return make


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories `p`, `t` and `rm` of tiny models, made once."""
    folder: Path = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


@pytest.fixture
def workshop(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """A folder with models, data and rewards, in which flows run; no curves are drawn, which takes a second."""
    for name in ("p", "t", "rm"):
        (tmp_path / name).symlink_to(model_folder / name)
    monkeypatch.setattr("shardflow.runtime.telemetry.telemetry.plot", lambda *args, **kw: False)
    shop = Workshop(tmp_path)
    report = Run._report

    def spy(run: Run, step: Any, values: Any, seconds: float) -> bool:
        shop.values.append(values)
        is_stopping = report(run, step, values, seconds)
        if step.number == shop.interrupt_at:
            raise Interrupted
        return is_stopping

    monkeypatch.setattr(Run, "_report", spy)
    return shop
