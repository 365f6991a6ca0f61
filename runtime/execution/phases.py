"""Phases: what runs a model. Sampling, and scoring of rollouts and tokenised columns."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...compiler.plan import Instruction
from .. import noise
from ..engines import Generated, Sampling
from ..errors import RunError
from ..models import Sequences
from ..models.loading import Role
from ..models.scoring import count_passes, evaluate
from ..models.text import decode, encode_pair, encode_prompt
from ..values import Frame, Record, Value, innermost
from .interpreter import HANDLERS, Env, frames_named
from .room import check_prompts, check_sequences
from .session import source_name

# ---------------------------------------------------------------- sampling


def _generate(i: Instruction, env: Env) -> Record:
    session, model = env.session, i.attrs["model"]
    if i.attrs.get("engine", "transformers") != "transformers":
        raise RunError(
            f"engine={i.attrs['engine']} of `{model}.generate` isn't supported by this version: use transformers"
        )
    role = session.roles[holding_of(i)]
    prompts, base = _prompts(i, env)
    chat = bool(i.attrs.get("chat"))
    tokenised = [encode_prompt(role.tokenizer, p, chat=chat) for p in prompts]
    sampling = Sampling(
        n=i.attrs.get("n"),
        max_new_tokens=[int(x) for x in _per_row(env, i, "max_new_tokens", base)],
        temperature=[float(x) for x in _per_row(env, i, "temperature", base)],
        min_new_tokens=i.attrs.get("min_new_tokens", 0),
        top_k=i.attrs.get("top_k", 0),
        top_p=i.attrs.get("top_p", 1.0),
    )
    check_prompts(i.out, role, base, prompts, [len(t) for t in tokenised], sampling.max_new_tokens)
    rows = _rows(i, base, sampling.samples)
    keys = noise.row_keys(
        session.settings.seed,
        session.plan.flow,
        source_name(i),
        env.step.number,
        draw_numbers(base)[rows.path(base)],
        _samples(rows, base),
    )
    generated = session.engine(holding_of(i), bool(i.attrs.get("snapshot"))).generate(tokenised, sampling, keys)
    env.step.generated_tokens += len(generated.tokens)
    return _rollout(i, env, role, rows, base, prompts, tokenised, sampling, generated)


def _prompts(i: Instruction, env: Env) -> tuple[list[Any], Frame]:
    given = env.operand(i.args["prompts"])
    if isinstance(given, Record):
        if "prompt" not in given.fields:
            raise RunError(
                f"`{i.out}`: the data has no column `prompt`; it has {', '.join(f'`{n}`' for n in given.fields)}"
            )
        given = given.fields["prompt"]
    assert isinstance(given, Value) and given.frame is not None
    return given.rows, given.frame


def _per_row(env: Env, i: Instruction, name: str, frame: Frame) -> list[Any]:
    given = env.operand(i.args[name])
    return given.on(frame).rows if isinstance(given, Value) else [given] * frame.size


def _rows(i: Instruction, base: Frame, samples: int) -> Frame:
    """The frame of the rollout: a `sample` axis where `n=` was given, else the prompts' own."""
    if "n" not in i.attrs:
        return base
    index = torch.arange(base.size).repeat_interleave(samples)
    return Frame(i.attrs["rows"], base.size * samples, base, index, torch.arange(samples).repeat(base.size))


def _samples(rows: Frame, base: Frame) -> Tensor:
    return rows.ids if rows is not base and rows.ids is not None else torch.zeros(rows.size, dtype=torch.long)


def draw_numbers(frame: Frame) -> Tensor:
    """[rows]: a number for each row that only depends on what it was drawn from: of a root its draw number."""
    if frame.parent is None or frame.index is None:
        assert frame.ids is not None
        return frame.ids
    above = draw_numbers(frame.parent)[frame.index]
    own = frame.ids if frame.ids is not None else position_in_parent(frame)
    return above * 1_000_003 + own + 1


def position_in_parent(frame: Frame) -> Tensor:
    """[rows]: 0 for the first row under each parent row."""
    assert frame.index is not None
    starts = torch.cumsum(frame.lengths, 0) - frame.lengths
    return torch.arange(frame.size) - starts[frame.index]


def _rollout(
    i: Instruction,
    env: Env,
    role: Role,
    rows: Frame,
    base: Frame,
    prompts: list[Any],
    tokenised: list[list[int]],
    sampling: Sampling,
    generated: Generated,
) -> Record:
    number = env.session.settings.number
    lengths = generated.lengths.cpu()
    frame = rows.child(i.attrs["tokens"], lengths)
    tokens = generated.tokens.cpu()
    responses = [t.tolist() for t in torch.split(tokens, lengths.tolist())]
    ends = torch.cumsum(lengths, 0) - 1
    last = torch.zeros(frame.size, dtype=torch.bool)
    last[ends[lengths > 0]] = True
    parents = rows.path(base).tolist()
    fields = {
        "text": Value([decode(role.tokenizer, r) for r in responses], rows),
        "length": Value(lengths, rows),
        "truncated": Value(generated.truncated.cpu(), rows),
        "tokens": Value(tokens, frame),
        "logprobs": Value(generated.logprobs.cpu().to(number), frame),
        "position": Value(position_in_parent(frame), frame),
        "last": Value(last, frame),
        "reward": Value(torch.zeros(frame.size, dtype=number), frame),
        "turn": Value(torch.zeros(frame.size, dtype=torch.long), frame),
    }
    hidden = {
        "context": Value([tokenised[p] for p in parents], rows),
        "response": Value(responses, rows),
        "prompt": Value([prompts[p] for p in parents], rows),
        "temperature": Value(torch.tensor([sampling.temperature[p] for p in parents], dtype=torch.float64), rows),
        "chat": Value([bool(i.attrs.get("chat"))] * rows.size, rows),
    }
    return Record("rollout", rows, fields, hidden, writer=i.attrs["model"])


# ---------------------------------------------------------------- scoring


def _tokenise(i: Instruction, env: Env) -> Record:
    tokenizer = env.session.tokenizer(i.attrs["tokenizer_of"])
    prompt, response = env.value(i.args["prompt"]), env.value(i.args["response"])
    rows = innermost([prompt.frame, response.frame])
    assert rows is not None
    chat = bool(i.attrs.get("chat"))
    prompts, responses = prompt.on(rows).rows, response.on(rows).rows
    pairs = [encode_pair(tokenizer, p, r, chat=chat) for p, r in zip(prompts, responses, strict=True)]
    tokens = _token_frame(env, i.attrs["tokens"], rows, [len(r) for _, r in pairs])
    hidden = {
        "context": Value([c for c, _ in pairs], rows),
        "response": Value([r for _, r in pairs], rows),
        "prompt": Value(prompts, rows),
        "temperature": Value(torch.ones(rows.size, dtype=torch.float64), rows),
    }
    ids = Value(torch.tensor([t for _, r in pairs for t in r], dtype=torch.long), tokens)
    return Record("sequences", rows, {"tokens": ids}, hidden, writer=i.attrs["tokenizer_of"])


def _token_frame(env: Env, name: str, rows: Frame, lengths: Sequence[int]) -> Frame:
    """The token axis of a tokenised column: one for all models that read it with the same tokenizer."""
    known = (f for f in frames_named(env, name) if f.parent is rows and f.lengths.tolist() == list(lengths))
    return next(known, None) or rows.child(name, lengths)


def sequences_of(record: Record) -> Sequences:
    """Token ids of a record's rows, as scoring takes them."""
    return Sequences(record.hidden["context"].rows, record.hidden["response"].rows)


def token_frame(record: Record) -> Frame:
    frame = record.fields["tokens"].frame
    assert frame is not None
    return frame


def temperature_of(record: Record) -> float | Tensor:
    """The temperature log-probs are taken at: the rollout's, 1 if that was 0."""
    given = record.hidden["temperature"].tensor
    values = torch.where(given > 0, given, 1.0)
    first = float(values[0]) if len(values) else 1.0
    return first if bool((values == first).all()) else values


def holding_of(i: Instruction) -> str:
    """The weights that a phase reads: those of its model where that is trained, or a copy on another mesh."""
    return str(i.attrs.get("holding", i.attrs["model"]))


def _phase(i: Instruction, env: Env) -> Value:
    """A model's values for given sequences, without gradients."""
    role = env.session.read_role(holding_of(i), bool(i.attrs.get("snapshot")))
    record = env.record(i.args["sequences"])
    seqs, frame = readable(role, record, i, env)
    budget = env.session.settings.micro or i.attrs["micro"]
    passes = _passes(i, env, seqs, budget) if role.is_sharded else None
    out = evaluate(role, seqs, (i.op,), temperature_of(record), budget, passes)[i.op]
    return Value(out.cpu().to(env.session.settings.number), frame)


def _passes(i: Instruction, env: Env, seqs: Sequences, budget: int) -> int:
    """The forward passes that every rank makes: as many as the rank with most of them."""
    own = torch.tensor([count_passes(seqs, budget)])
    return int(env.session.channel(i.mesh).gather(own, env.told(i)).max())


def readable(role: Role, record: Record, i: Instruction, env: Env) -> tuple[Sequences, Frame]:
    """The record's sequences for this role, and the frame of its result.

    Token ids of another tokenizer mean nothing: `score` re-tokenises the text, the others refuse it.
    """
    frame = record.frame if i.op == "score" else token_frame(record)
    writer = env.session.tokenizer(record.writer) if record.writer else role.tokenizer
    texts = record.hidden["prompt"].rows
    if same_tokenizer(role.tokenizer, writer):
        seqs = sequences_of(record)
        check_sequences(f"{role.name}.{i.op}", role, record.frame, seqs, texts)
        return seqs, frame
    if i.op != "score" or record.kind != "rollout":
        raise RunError(f"`{role.name}.{i.op}` can't read what `{record.writer}` wrote: it has another tokenizer")
    rows = zip(texts, record.fields["text"].rows, record.hidden["chat"].rows, strict=True)
    encoded = [encode_pair(role.tokenizer, p, t, chat=chat) for p, t, chat in rows]
    seqs = Sequences([c for c, _ in encoded], [r for _, r in encoded])
    check_sequences(f"{role.name}.{i.op}", role, record.frame, seqs, texts)
    return seqs, frame


@cache
def _vocabulary(tokenizer: Any) -> dict[str, int]:
    return dict(tokenizer.get_vocab())


def same_tokenizer(a: Any, b: Any) -> bool:
    return a is b or a is None or b is None or _vocabulary(a) == _vocabulary(b)


HANDLERS["generate"] = _generate
HANDLERS["tokenise"] = _tokenise
for _op in ("logprobs", "entropy", "values", "score"):
    HANDLERS[_op] = _phase
