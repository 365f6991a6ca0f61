"""Generation: the same tokens whatever the engine, the company of a row and the order of rows."""

import pytest
import torch

from shardflow.runtime import noise
from shardflow.runtime.engines import Engine, EngineError, Generated, Sampling, make_engine
from shardflow.runtime.engines import engine as engine_module
from shardflow.runtime.engines.folding import unsupported
from shardflow.runtime.engines.functional import FunctionalEngine, mismatch
from shardflow.runtime.engines.transformers_engine import TransformersEngine
from shardflow.runtime.models import Role, Sequences, compile_layers, evaluate
from shardflow.runtime.models.layers import is_compiled

from .conftest import RoleMaker

FUNCTIONAL = ["llama", "llama_varied", "qwen2", "qwen3", "mistral"]
PROMPTS = [[3, 4, 5], [7, 8, 9, 10, 11], [1], [20, 21]]
EOS = 257


def keys_of(draws: list[int], samples: int) -> torch.Tensor:
    rows = torch.tensor(draws, dtype=torch.long).repeat_interleave(samples)
    return noise.row_keys(0, "flow", "rollout", 0, rows, torch.arange(samples).repeat(len(draws)))


def serve(engine: Engine, role: Role) -> Engine:
    engine.load_weights(role, 0)
    return engine


def split(generated: Generated) -> list[list[int]]:
    return [row.tolist() for row in torch.split(generated.tokens, generated.lengths.tolist())]


def like_to_stop(role: Role) -> Role:
    """Make the end of sequence likely, so that responses end at all lengths."""
    with torch.no_grad():
        head = role.module.lm_head.weight  # type: ignore[union-attr]
        head[EOS] = head[5] * 1.1  # type: ignore[index,operator]
    return role


SAMPLINGS = {
    "plain": Sampling(3, [12, 30, 20, 25], [1.0] * 4),
    "mixed temperatures": Sampling(3, [12, 30, 20, 25], [1.0, 0.5, 0.0, 2.0]),
    "filters": Sampling(3, [25] * 4, [1.0, 0.7, 0.0, 1.5], min_new_tokens=4, top_k=40, top_p=0.9),
    "greedy": Sampling(None, [25] * 4, [0.0] * 4),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=list(SAMPLINGS))
@pytest.mark.parametrize("family", FUNCTIONAL)
def test_engines_agree_in_float64(make_role: RoleMaker, family: str, sampling: Sampling) -> None:
    role = like_to_stop(make_role(family))
    keys = keys_of([0, 1, 2, 3], sampling.samples)
    fast = serve(make_engine(role), role)
    assert isinstance(fast, FunctionalEngine) and fast.reason == ""
    ours = fast.generate(PROMPTS, sampling, keys)
    theirs = serve(TransformersEngine(), role).generate(PROMPTS, sampling, keys)
    assert torch.equal(ours.tokens, theirs.tokens) and torch.equal(ours.lengths, theirs.lengths)
    assert torch.equal(ours.truncated, theirs.truncated)
    assert torch.allclose(ours.logprobs, theirs.logprobs, atol=1e-10)


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_company_and_order_change_nothing(make_role: RoleMaker, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    role = make_role(family)
    engine, sampling = serve(make_engine(role), role), Sampling(3, [12, 30, 20, 25], [1.0, 0.5, 1.0, 2.0])
    whole = split(engine.generate(PROMPTS, sampling, keys_of([0, 1, 2, 3], 3)))
    for row in range(4):
        alone = sampling.select(range(row, row + 1))
        assert split(engine.generate(PROMPTS[row : row + 1], alone, keys_of([row], 3))) == whole[3 * row : 3 * row + 3]
    order = [2, 0, 3, 1]
    moved = Sampling(3, [sampling.max_new_tokens[i] for i in order], [sampling.temperature[i] for i in order])
    found = split(engine.generate([PROMPTS[i] for i in order], moved, keys_of(order, 3)))
    assert found == [whole[3 * i + s] for i in order for s in range(3)]
    monkeypatch.setattr(engine_module, "_CACHE_BYTES", 1)  # wave after wave
    assert split(engine.generate(PROMPTS, sampling, keys_of([0, 1, 2, 3], 3))) == whole


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_log_probs_are_those_of_scoring(make_role: RoleMaker, family: str, dtype: torch.dtype) -> None:
    role = like_to_stop(make_role(family, dtype))
    sampling = Sampling(3, [12, 30, 20, 25], [1.0, 0.5, 0.0, 2.0])
    generated = serve(make_engine(role), role).generate(PROMPTS, sampling, keys_of([0, 1, 2, 3], 3))
    seqs = Sequences([p for p in PROMPTS for _ in range(3)], split(generated))
    temperature = torch.tensor(sampling.temperature).repeat_interleave(3)
    scored = evaluate(role, seqs, ("logprobs",), temperature)["logprobs"]
    assert torch.allclose(generated.logprobs, scored, atol=1e-10 if dtype == torch.float64 else 1e-5)
    assert not generated.logprobs.is_inference()


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_responses_end_where_they_should(make_role: RoleMaker, family: str) -> None:
    role, limits = like_to_stop(make_role(family)), [12, 30, 1, 25]
    engine = serve(make_engine(role), role)
    generated = engine.generate(PROMPTS, Sampling(20, limits, [1.0] * 4), keys_of([0, 1, 2, 3], 20))
    rows, truncated = split(generated), generated.truncated.tolist()
    assert {True, False} == set(truncated)
    for row, (tokens, cut) in enumerate(zip(rows, truncated, strict=True)):
        assert EOS not in tokens[:-1] and len(tokens) <= limits[row // 20]
        assert (tokens[-1] != EOS) == cut
        assert not cut or len(tokens) == limits[row // 20]
    longer = engine.generate(PROMPTS, Sampling(20, limits, [1.0] * 4, min_new_tokens=9), keys_of([0, 1, 2, 3], 20))
    assert min(len(tokens) for tokens in split(longer)[:40]) >= 10 > min(len(tokens) for tokens in rows[:40])


def test_filters_keep_the_likeliest(make_role: RoleMaker) -> None:
    role = make_role("llama")
    engine = serve(make_engine(role), role)
    greedy = engine.generate(PROMPTS, Sampling(None, [10] * 4, [0.0] * 4), keys_of([0, 1, 2, 3], 1))
    for narrow in (Sampling(None, [10] * 4, [2.0] * 4, top_k=1), Sampling(None, [10] * 4, [2.0] * 4, top_p=1e-6)):
        one = engine.generate(PROMPTS, narrow, keys_of([0, 1, 2, 3], 1))
        assert torch.equal(one.tokens, greedy.tokens) and not one.logprobs.any()


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.6), (5, 0.6)])
def test_filtered_distribution(make_role: RoleMaker, top_k: int, top_p: float) -> None:
    role, temperature, n = make_role("qwen2"), 0.8, 4000
    sampling = Sampling(n, [1], [temperature], top_k=top_k, top_p=top_p)
    generated = serve(make_engine(role), role).generate([[3, 4, 5]], sampling, keys_of([0], n))
    p = (role.module(torch.tensor([[3, 4, 5]])).logits[0, -1] / temperature).softmax(-1).detach()
    p, ids = p.sort(descending=True)
    if top_k:
        p = torch.where(torch.arange(len(p)) < top_k, p, 0)
        p = p / p.sum()
    p = torch.where(p.cumsum(0) - p < top_p, p, 0)
    expected = torch.zeros_like(p).scatter(0, ids, p / p.sum())
    share = torch.bincount(generated.tokens, minlength=258) / n
    assert ((share - expected).abs() <= 5 * (expected * (1 - expected) / n).sqrt()).all()
    assert torch.allclose(generated.logprobs, expected[generated.tokens].log(), atol=1e-10)


def test_long_runs_settle_their_log_probs_in_blocks(make_role: RoleMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    role, sampling = like_to_stop(make_role("llama")), Sampling(4, [30] * 4, [1.0] * 4)
    engine = serve(make_engine(role), role)
    whole = engine.generate(PROMPTS, sampling, keys_of([0, 1, 2, 3], 4))
    monkeypatch.setattr("shardflow.runtime.engines.decoding._LOG_ELEMENTS", 258 * 40)
    blocks = engine.generate(PROMPTS, sampling, keys_of([0, 1, 2, 3], 4))
    assert torch.equal(whole.tokens, blocks.tokens) and torch.equal(whole.logprobs, blocks.logprobs)


def test_only_legal_transitions(make_role: RoleMaker) -> None:
    role, sampling, keys = make_role("llama"), Sampling(None, [2], [1.0]), keys_of([0], 1)
    engine = make_engine(role)

    def state() -> object:
        return engine.state

    for call in (lambda: engine.generate([[1]], sampling, keys), engine.sleep):
        with pytest.raises(EngineError, match="asked of an engine that is asleep: load_weights comes first"):
            call()
    engine.load_weights(role, 4)
    assert state() == engine_module.Loaded(4)
    engine.generate([[1]], sampling, keys)
    assert state() == engine_module.Serving(4)
    engine.load_weights(role, 5)
    assert state() == engine_module.Loaded(5)
    engine.sleep()
    assert state() == engine_module.Asleep()
    with pytest.raises(EngineError, match="only a causal_lm generates"):
        engine.load_weights(make_role("llama", kind="value_model"), 0)


def nudge(role: Role) -> None:
    with torch.no_grad():
        for parameter in role.parameters():
            parameter.mul_(1.5)


def test_weights_are_those_of_the_version(make_role: RoleMaker) -> None:
    sampling, keys = Sampling(2, [20] * 4, [1.0] * 4), keys_of([0, 1, 2, 3], 2)
    for family, snapshot in (("llama", False), ("gpt2", True)):
        role = make_role(family)
        engine = serve(make_engine(role, snapshot=snapshot), role)
        before = engine.generate(PROMPTS, sampling, keys)
        nudge(role)
        assert torch.equal(engine.generate(PROMPTS, sampling, keys).tokens, before.tokens)
        engine.load_weights(role, 1)
        assert not torch.equal(engine.generate(PROMPTS, sampling, keys).logprobs, before.logprobs)
    role = make_role("gpt2")
    engine = serve(make_engine(role), role)
    nudge(role)
    with pytest.raises(EngineError, match="the weights of policy were changed after load_weights"):
        engine.generate(PROMPTS, sampling, keys)


def test_a_compiled_role_generates_uncompiled(make_role: RoleMaker) -> None:
    role = make_role("llama", torch.float32)
    sampling, keys = Sampling(2, [5] * 4, [1.0] * 4), keys_of([0, 1, 2, 3], 2)
    before = serve(TransformersEngine(), role).generate(PROMPTS, sampling, keys)
    compile_layers(role)
    after = serve(TransformersEngine(), role).generate(PROMPTS, sampling, keys)
    assert torch.equal(before.tokens, after.tokens) and is_compiled(role.module)


def test_reasons_for_the_slower_engine(make_role: RoleMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_engine(make_role("gpt2")).reason.startswith("GPT2LMHeadModel is not one of LlamaForCausalLM,")
    role = make_role("mistral")
    role.config.sliding_window = 16
    assert unsupported(role) == "attention slides over 16 tokens"
    role = make_role("llama")
    role.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0}
    assert unsupported(role).startswith("rope_type is dynamic, not one of")
    monkeypatch.setattr("shardflow.runtime.engines.folding._MOST_BYTES", 1000)
    assert "a second copy of" in unsupported(make_role("llama"))


def test_a_decoder_that_disagrees_is_not_used(make_role: RoleMaker) -> None:
    role = make_role("llama")
    assert mismatch(role) == ""
    role.module.model.layers[1].self_attn.scaling *= 1.01  # type: ignore[union-attr,index]
    assert mismatch(role) == ""  # the scale is read from the module
    role.module.model.layers[1].mlp.act_fn = torch.nn.ReLU()  # type: ignore[union-attr,index]
    engine = make_engine(role)
    assert isinstance(engine, TransformersEngine)
    assert engine.reason.startswith("the functional decoder's logits are off by")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n=0 cannot be sampled with: it must be at least 1"),
        ({"max_new_tokens": [0]}, "max_new_tokens=.0. cannot be sampled with: it must be at least 1"),
        ({"temperature": [-1.0]}, "temperature=.-1.0. cannot be sampled with: it must be 0 or more"),
        ({"top_p": 0.0}, "top_p=0.0 cannot be sampled with: it must be more than 0"),
    ],
)
def test_impossible_options(changes: dict[str, object], message: str) -> None:
    options: dict[str, object] = {"n": 1, "max_new_tokens": [1], "temperature": [1.0]}
    with pytest.raises(EngineError, match=message):
        Sampling(**(options | changes))  # type: ignore[arg-type]


def test_no_prompts_give_no_rows(make_role: RoleMaker) -> None:
    role = make_role("llama")
    nothing = serve(make_engine(role), role).generate([], Sampling(3, [], []), keys_of([], 3))
    assert [len(x) for x in (nothing.tokens, nothing.logprobs, nothing.lengths, nothing.truncated)] == [0] * 4


def test_requests_that_do_not_fit(make_role: RoleMaker) -> None:
    role = make_role("llama")
    engine = serve(make_engine(role), role)
    for prompts, limits, count, message in [
        ([[1] * 100], [29], 1, "prompt 0 has 100 tokens and may get 29 more, but policy reads at most 128"),
        ([[1], []], [5, 5], 2, "prompt 1 is empty"),
        ([[1]], [5], 2, "keys has 2 entries for 1 prompts x 1 samples: 1 needed"),
        ([[1]], [5, 6], 1, "max_new_tokens has 2 entries"),
    ]:
        with pytest.raises(EngineError, match=message):
            engine.generate(prompts, Sampling(None, limits, [1.0] * len(prompts)), torch.zeros(count, dtype=torch.long))
