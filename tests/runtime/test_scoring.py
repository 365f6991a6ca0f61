"""Log-probs, entropies, values and scores: against plain formulas, and invariant to packing, padding and chunks."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardflow.runtime.models import ModelError, Role, Sequences, evaluate, forward, micro_batches
from shardflow.runtime.models.packing import bucket

from .conftest import RoleMaker

FAMILIES = ["llama_varied", "qwen2", "qwen3", "gpt2"]


def ragged(seed: int = 0, rows: int = 6) -> Sequences:
    g = torch.Generator().manual_seed(seed)

    def some(most: int, least: int) -> list[list[int]]:
        counts = torch.randint(least, most, (rows,), generator=g).tolist()
        return [torch.randint(0, 258, (n,), generator=g).tolist() for n in counts]

    return Sequences(some(9, 1), some(12, 0))


def by_hand(
    role: Role, context: list[int], response: list[int], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = role.module(torch.tensor([context + response])).logits[0, len(context) - 1 : -1] / temperature
    logp = logits.log_softmax(-1)
    return logp[torch.arange(len(response)), response], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_and_entropy_are_the_models_own(make_role: RoleMaker, family: str) -> None:
    role, seqs = make_role(family), ragged()
    temperature = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.3, 1.0])
    out = forward(role, seqs, ("entropy", "logprobs"), temperature)
    rows = zip(seqs.context, seqs.response, temperature.tolist(), strict=True)
    expected = [by_hand(role, c, r, t or 1.0) for c, r, t in rows if r]
    assert list(out) == ["entropy", "logprobs"]
    assert torch.allclose(out["logprobs"], torch.cat([e[0] for e in expected]), atol=1e-10)
    assert torch.allclose(out["entropy"], torch.cat([e[1] for e in expected]), atol=1e-10)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_values_and_scores_are_read_at_the_right_places(make_role: RoleMaker, family: str) -> None:
    role, seqs = make_role(family, kind="value_model"), ragged()
    out = forward(role, seqs, ("values", "score"))
    values, scores = [], []
    for context, response in zip(seqs.context, seqs.response, strict=True):
        hidden = role.module.base_model(torch.tensor([context + response])).last_hidden_state[0]  # type: ignore[operator]
        everywhere = role.module.score(hidden)[:, 0]  # type: ignore[operator]
        values.append(everywhere[len(context) - 1 : -1] if response else everywhere[:0])
        scores.append(everywhere[-1:])
    assert torch.allclose(out["values"], torch.cat(values), atol=1e-10)
    assert torch.allclose(out["score"], torch.cat(scores), atol=1e-10)


def test_scores_are_those_of_hugging_face(make_role: RoleMaker) -> None:
    role, seqs = make_role("qwen2", kind="reward_model"), ragged()
    theirs = [role.module(torch.tensor([c + r])).logits[0, 0] for c, r in zip(seqs.context, seqs.response, strict=True)]
    assert torch.allclose(forward(role, seqs, ("score",))["score"], torch.stack(theirs), atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "want"), [("causal_lm", ("logprobs", "entropy")), ("value_model", ("values", "score"))]
)
def test_company_order_and_padding_change_nothing(make_role: RoleMaker, kind: str, want: tuple[str, ...]) -> None:
    role, seqs = make_role("qwen2", kind=kind), ragged(rows=9)
    whole = evaluate(role, seqs, want, budget=10_000)
    for budget in (1, 20, 60):
        split = evaluate(role, seqs, want, budget=budget)
        assert all(torch.allclose(split[name], whole[name], atol=1e-10, rtol=0) for name in want)
    order = [4, 2, 8, 0, 1, 3, 5, 7, 6]
    permuted = evaluate(role, seqs.select(order), want)
    for name in want:
        counts = [1] * 9 if name == "score" else seqs.response_lengths
        pieces = torch.split(whole[name], counts)
        assert torch.allclose(permuted[name], torch.cat([pieces[i] for i in order]), atol=1e-10, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.7, torch.tensor([1.0, 0.5, 2.0, 0.0, 1.3, 1.0], dtype=torch.float64)])
@pytest.mark.parametrize("want", [("logprobs",), ("logprobs", "entropy")])
@pytest.mark.parametrize("family", ["llama", "llama_varied"])
def test_chunks_change_neither_values_nor_gradients(
    make_role: RoleMaker, family: str, want: tuple[str, ...], temperature: float | torch.Tensor
) -> None:
    role, seqs = make_role(family), ragged()
    weights = torch.linspace(-1, 2, sum(seqs.response_lengths), dtype=torch.float64)

    def run(chunk: int | None) -> list[torch.Tensor]:
        role.module.zero_grad()
        out = forward(role, seqs, want, temperature, chunk)
        sum((out[name] * weights * (i + 1)).sum() for i, name in enumerate(want)).backward()  # type: ignore[union-attr]
        grads = [p.grad.clone() for p in role.parameters() if p.grad is not None]
        return [*(out[name].detach() for name in want), *grads]

    plain = run(None)
    for chunk in (1, 7):
        assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(plain, run(chunk), strict=True))


def test_a_frozen_head_gets_no_gradient_from_chunks(make_role: RoleMaker) -> None:
    role, seqs = make_role("qwen2"), ragged()
    role.module.lm_head.weight.requires_grad_(False)  # type: ignore[union-attr]
    forward(role, seqs, ("logprobs",), chunk_tokens=5)["logprobs"].sum().backward()  # type: ignore[no-untyped-call]
    assert role.module.lm_head.weight.grad is None  # type: ignore[union-attr]
    assert role.module.model.layers[0].mlp.up_proj.weight.grad is not None  # type: ignore[union-attr,index]


class CappedHead(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * torch.tanh(super().forward(x) / 3)


def test_a_head_of_another_class_is_called_not_taken_apart(make_role: RoleMaker) -> None:
    role, seqs = make_role("llama"), ragged()
    old = role.module.lm_head
    capped = CappedHead(old.in_features, old.out_features, bias=False, dtype=torch.float64)  # type: ignore[union-attr,arg-type]
    capped.weight = old.weight  # type: ignore[union-attr,assignment]
    role.module.lm_head = capped
    plain = forward(role, seqs, ("logprobs", "entropy"))
    chunked = forward(role, seqs, ("logprobs", "entropy"), chunk_tokens=4)
    assert role.direct is True
    assert all(torch.allclose(plain[name], chunked[name], atol=1e-10) for name in plain)


def test_scaled_logits_are_noticed(make_role: RoleMaker) -> None:
    role, seqs = make_role("llama"), ragged()
    own = type(role.module).forward

    def scaled(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
        output = own(self, *args, **kwargs)
        output.logits = output.logits / 5
        return output

    role.module.forward = scaled.__get__(role.module)
    out = forward(role, seqs, ("logprobs",), chunk_tokens=5)["logprobs"]
    assert role.direct is False
    rows = zip(seqs.context, seqs.response, strict=True)
    assert torch.allclose(out, torch.cat([by_hand(role, c, r, 1.0)[0] for c, r in rows if r]), atol=1e-10)


def test_bfloat16_is_normalised_in_float32(make_role: RoleMaker) -> None:
    role, seqs = make_role("llama", torch.bfloat16), ragged()
    exact = forward(make_role("llama"), seqs, ("logprobs",))["logprobs"]
    for chunk in (None, 5):
        out = forward(role, seqs, ("logprobs",), chunk_tokens=chunk)["logprobs"]
        assert out.dtype == torch.float32
        assert torch.allclose(out.double(), exact, atol=0.5)
        out.sum().backward()  # type: ignore[no-untyped-call]


def test_gradients_flow_only_where_enabled(make_role: RoleMaker) -> None:
    role, seqs = make_role("llama"), ragged()
    assert forward(role, seqs, ("logprobs",))["logprobs"].requires_grad
    assert not evaluate(role, seqs, ("logprobs",))["logprobs"].requires_grad


def test_no_rows_and_no_tokens(make_role: RoleMaker) -> None:
    role = make_role("llama")
    for compute in (evaluate, forward):
        assert compute(role, Sequences([], []), ("logprobs",))["logprobs"].shape == (0,)
    assert forward(role, Sequences([[1], [2]], [[], []]), ("logprobs", "entropy"))["entropy"].shape == (0,)


def test_what_is_not_there_is_said(make_role: RoleMaker) -> None:
    with pytest.raises(ModelError, match="policy is a causal_lm, which has no values; it has logprobs and entropy"):
        forward(make_role("llama"), ragged(), ("values",))
    with pytest.raises(ModelError, match="which has no logprobs; it has values and score"):
        forward(make_role("llama", kind="reward_model"), ragged(), ("logprobs",))
    with pytest.raises(ValueError, match="row 1 has an empty context"):
        Sequences([[1], []], [[2], [3]])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
def test_micro_batches(lengths: list[int], budget: int) -> None:
    groups = micro_batches(lengths, budget)
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[row] for row in group)
        assert len(group) == 1 or len(group) * longest <= budget
    assert groups == micro_batches(lengths, budget)


def test_buckets() -> None:
    assert [bucket(n, 8) for n in (1, 2, 3, 5, 8, 9, 16, 17)] == [1, 2, 4, 8, 8, 16, 16, 24]
