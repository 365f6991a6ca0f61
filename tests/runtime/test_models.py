"""Roles: loading, heads, copies, saving, compiled and checkpointed layers."""

import os
from pathlib import Path

import pytest
import torch
import transformers

from shardflow.runtime.models import (
    ModelError,
    Role,
    Sequences,
    compile_layers,
    enable_checkpointing,
    evaluate,
    forward,
    load_role,
    save_role,
)
from shardflow.runtime.models.layers import PlainRMSNorm, eager_layers, is_compiled

from . import tiny
from .conftest import RoleMaker

SEQS = Sequences([[3, 4, 5], [7, 8, 9, 10, 11]], [[5, 6, 257], [9, 1]])


def logprobs(role: Role) -> torch.Tensor:
    return evaluate(role, SEQS, ("logprobs",))["logprobs"]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gpt2"])
def test_a_float64_model_is_the_same_model(make_role: RoleMaker, family: str) -> None:
    wide, narrow = make_role(family), make_role(family, torch.float32)
    assert wide.dtype == torch.float64 and narrow.dtype == torch.float32
    assert torch.allclose(logprobs(wide).float(), logprobs(narrow), atol=1e-4)
    assert not any("RMSNorm" in type(m).__name__ and type(m) is not PlainRMSNorm for m in wide.module.modules())


def test_all_dropout_is_zero_unless_asked(make_role: RoleMaker) -> None:
    gpt2 = make_role("gpt2")
    assert {m.p for m in gpt2.module.modules() if isinstance(m, torch.nn.Dropout)} == {0.0}
    assert gpt2.config.attn_pdrop == gpt2.config.resid_pdrop == 0.0
    assert make_role("llama", dropout=0.1).config.attention_dropout == 0.1


def test_dropout_acts_with_gradients_only(make_role: RoleMaker) -> None:
    role = make_role("gpt2", dropout=0.5)
    plain = logprobs(role)
    assert not torch.allclose(forward(role, SEQS, ("logprobs",))["logprobs"], plain)
    assert torch.equal(logprobs(role), plain)


def test_a_fresh_head_depends_on_seed_and_name_alone(make_role: RoleMaker) -> None:
    def head(family: str, **options: object) -> torch.Tensor:
        return make_role(family, kind="value_model", **options).module.score.weight.detach()  # type: ignore[union-attr,operator]

    first = head("llama", seed=1, name="critic")
    torch.manual_seed(123)
    assert torch.equal(head("llama", seed=1, name="critic"), first)
    assert torch.equal(head("qwen2", seed=1, name="critic"), first)
    assert not torch.equal(head("llama", seed=2, name="critic"), first)
    assert not torch.equal(head("llama", seed=1, name="other"), first)
    assert torch.equal(head("llama", seed=1, name="critic", dtype=torch.float32), first.float())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_first_values_are_near_zero(make_role: RoleMaker, family: str) -> None:
    values = evaluate(make_role(family, kind="value_model"), SEQS, ("values",))["values"]
    assert 0 < float(values.abs().max()) < 0.2


def test_clones_are_independent(make_role: RoleMaker) -> None:
    role = make_role("qwen2")
    twin = role.clone("ref")
    before = logprobs(twin)
    with torch.no_grad():
        for parameter in role.parameters():
            parameter.mul_(1.1)
    assert twin.name == "ref" and twin.tokenizer is role.tokenizer
    assert torch.equal(logprobs(twin), before) and not torch.equal(logprobs(role), before)


def test_copy_and_moving_average(make_role: RoleMaker, tmp_path: Path) -> None:
    a, b = make_role("llama"), make_role("llama")
    with torch.no_grad():
        for parameter in b.parameters():
            parameter.add_(1.0)
    old = [p.clone() for p in a.parameters()]
    a.lerp_from(b, 0.75)
    for now, was in zip(a.parameters(), old, strict=True):
        assert torch.allclose(now, was + 0.25, atol=1e-14)
    a.copy_from(b)
    assert torch.equal(logprobs(a), logprobs(b))
    with pytest.raises(ModelError, match=r"policy cannot take the weights of policy: .* differs or is missing"):
        a.copy_from(make_role("qwen2"))


@pytest.mark.parametrize("family", ["llama_varied", "gpt2"])
def test_saved_roles_load_as_the_same_model(make_role: RoleMaker, tmp_path: Path, family: str) -> None:
    role, target = make_role(family, torch.float32), tmp_path / "out" / "policy"
    save_role(role, target)
    assert torch.equal(logprobs(load_role("causal_lm", str(target), dtype=torch.float32)), logprobs(role))
    plain = transformers.AutoModelForCausalLM.from_pretrained(target)
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), role.parameters(), strict=True))
    assert transformers.AutoTokenizer.from_pretrained(target).chat_template == role.tokenizer.chat_template
    assert transformers.GenerationConfig.from_pretrained(target).eos_token_id == 257
    assert [p.name for p in target.parent.iterdir()] == ["policy"]


def test_saving_replaces_and_never_leaves_halves(
    make_role: RoleMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role, target = make_role("llama", torch.float32), tmp_path / "policy"
    save_role(role, target)
    with torch.no_grad():
        next(role.parameters()).add_(1.0)
    with monkeypatch.context() as patch:
        patch.setattr(role.tokenizer, "save_pretrained", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            save_role(role, target)
    assert not torch.equal(logprobs(load_role("causal_lm", str(target), dtype=torch.float32)), logprobs(role))
    save_role(role, target)
    assert torch.equal(logprobs(load_role("causal_lm", str(target), dtype=torch.float32)), logprobs(role))
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


def test_scalar_heads_survive_saving(make_role: RoleMaker, tmp_path: Path) -> None:
    critic = make_role("llama", torch.float32, "value_model", name="critic", seed=5)
    save_role(critic, tmp_path / "critic")
    again = load_role("reward_model", str(tmp_path / "critic"), dtype=torch.float32, name="judge", seed=9)
    assert torch.equal(evaluate(again, SEQS, ("score",))["score"], evaluate(critic, SEQS, ("score",))["score"])


def test_weights_are_cast_on_load(make_role: RoleMaker, tmp_path: Path) -> None:
    save_role(make_role("llama", torch.bfloat16), tmp_path / "half")
    wide = load_role("causal_lm", str(tmp_path / "half"), dtype=torch.float64)
    assert wide.dtype == torch.float64
    assert all(torch.equal(p, p.bfloat16().double()) for p in wide.parameters())


def test_paths_are_relative_to_the_flow(tiny_dirs: dict[str, str]) -> None:
    base = Path(tiny_dirs["llama"])
    assert load_role("causal_lm", base.name, dtype=torch.float32, base_dir=base.parent).kind == "causal_lm"


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_directory_without_tokenizer_has_none(tmp_path: Path, family: str) -> None:
    tiny.make_model(family).save_pretrained(tmp_path)
    assert load_role("causal_lm", str(tmp_path), dtype=torch.float32).tokenizer is None


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_loading_is_quiet(tiny_dirs: dict[str, str], family: str, capfd: pytest.CaptureFixture[str]) -> None:
    load_role("value_model", tiny_dirs[family], dtype=torch.float64)
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_loaded_is_one_sentence(
    tmp_path: Path, tiny_dirs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    cases = {
        "./nowhere": r"^model './nowhere' not found: there is no directory .*; give an existing directory or a hub id$",
        "nobody/nothing": r"^model 'nobody/nothing' not found: .* run `hf download nobody/nothing` where",
        str(tmp_path / "empty"): r"^the directory .*empty does not hold a model that can be loaded: ",
    }
    for path, message in cases.items():
        with pytest.raises(ModelError, match=message) as caught:
            load_role("causal_lm", path, dtype=torch.float32)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="unknown kind of model 'diffusion': it is one of causal_lm,"):
        load_role("diffusion", tiny_dirs["llama"], dtype=torch.float32)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"dtype torch.float16 is not supported"):
        load_role("causal_lm", tiny_dirs["llama"], dtype=torch.float16)


def gradients(role: Role) -> list[torch.Tensor]:
    role.module.zero_grad()
    forward(role, SEQS, ("logprobs",))["logprobs"].sum().backward()  # type: ignore[no-untyped-call]
    return [p.grad.clone() for p in role.parameters() if p.grad is not None]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_checkpointing_changes_no_gradient(make_role: RoleMaker, family: str) -> None:
    role = make_role(family)
    plain, layer = gradients(role), next(m for m in role.module.modules() if type(m).__name__.endswith("MLP"))
    calls: list[int] = []
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    enable_checkpointing(role)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(plain, gradients(role), strict=True))
    assert len(calls) == 2  # once forward, once again in the backward pass


def test_compiled_layers_compute_the_same(make_role: RoleMaker) -> None:
    role = make_role("qwen2", torch.float32)
    plain = gradients(role)
    compile_layers(role)
    assert is_compiled(role.module)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(plain, gradients(role), strict=True))
    twin = role.clone()
    assert is_compiled(twin.module) and twin.module.model.layers[0].forward is not role.module.model.layers[0].forward  # type: ignore[union-attr,index]
    with eager_layers(role.module):
        assert not is_compiled(role.module)
    assert is_compiled(role.module)


def test_no_compiler_is_one_sentence(make_role: RoleMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        RuntimeError, match=r"needs a C\+\+ compiler and found no g\+\+ or clang\+\+; install one or drop"
    ):
        compile_layers(make_role("llama"))
