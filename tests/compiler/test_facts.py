"""What the compiler learns of data files and model directories."""

import json
from pathlib import Path

import pytest

from shardflow.compiler.facts import Places, data_facts, model_facts
from shardflow.runtime.data.files import csv_rows
from shardflow.runtime.data.kinds import kind_of

KINDS = {"text": "str"}


def written(folder: Path, name: str, content: str | bytes) -> Places:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return Places((folder,))


def test_columns_of_json_lines(tmp_path: Path) -> None:
    rows = [
        {"a": "x", "b": 1, "c": 1, "d": True, "e": [1], "f": [{"role": "user", "content": "hi"}], "g": None},
        {"a": "y", "b": 2, "c": 2.5, "d": False, "e": [], "f": [{"role": "user", "content": "ho"}], "g": 1},
    ]
    facts = data_facts("d.jsonl", written(tmp_path, "d.jsonl", "\n\n".join(map(json.dumps, rows)) + "\n"))
    assert facts and facts.rows == 2
    assert facts.columns == {
        "a": "text", "b": "int", "c": "float", "d": "bool", "e": "list", "f": "messages", "g": "any",
    }  # fmt: skip


@pytest.mark.parametrize(
    "content", ['[{"a": 1}, {"a": 2}]', '{"data": [{"a": 1}, {"a": 2}]}', '\ufeff[{"a": 1}, {"a": 2}]']
)
def test_columns_of_json(tmp_path: Path, content: str) -> None:
    facts = data_facts("d.json", written(tmp_path, "d.json", content))
    assert facts and (facts.rows, facts.columns) == (2, {"a": "int"})


FIELDS = ["1", "-0", "007", "1_000", "1e3", "1.5", "1.5e3", "true", "False", "TRUE", "", "x", "1.", ".5", " 1", "nan"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_csv_column_is_what_its_first_record_has_as_in_a_run(tmp_path: Path, field: str) -> None:
    places = written(tmp_path, "d.csv", f'a,b\n"{field}",x\n\n12,"y\nz"\n')
    facts = data_facts("d.csv", places)
    ((_, first), _) = csv_rows(tmp_path / "d.csv", "d.csv")
    assert facts and facts.rows == 2
    assert KINDS.get(facts.columns["a"], facts.columns["a"]) == kind_of(first["a"])


@pytest.mark.parametrize(("later", "dtype"), [("2", "int"), ("1.5", "float"), ("x", "int")])
def test_one_fraction_makes_a_csv_column_of_numbers(tmp_path: Path, later: str, dtype: str) -> None:
    facts = data_facts("d.csv", written(tmp_path, "d.csv", f"a,b\n0,x\n{later},y\n3,z\n"))
    assert facts and facts.rows == 3 and facts.columns == {"a": dtype, "b": "text"}


BROKEN = [
    ("d.jsonl", '{"a": 1}\n{"a": \n', "d.jsonl, line 2: not JSON"),
    ("d.jsonl", "[1]\n", "d.jsonl, line 1: a row is an object"),
    ("d.jsonl", "", "d.jsonl has no rows"),
    ("d.jsonl", b'{"a": "\xff"}\n', "d.jsonl isn't UTF-8 text"),
    ("d.json", '[{"a": 1},\n{]', "d.json, line 2: not JSON"),
    ("d.json", '{"rows": []}', "d.json is no list of objects"),
    ("d.json", "[1, 2]", "d.json is no list of objects"),
    ("d.json", "3", "d.json is no list of objects"),
    ("d.csv", "", "d.csv has no rows"),
    ("d.csv", "a,b\n", "d.csv has no rows"),
]


@pytest.mark.parametrize(("name", "content", "said"), BROKEN, ids=[f"{b[0]}:{b[1]!r}" for b in BROKEN])
def test_a_broken_data_file_is_named(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("[", r"\[")):
        data_facts(name, written(tmp_path, name, content))


@pytest.mark.parametrize("path", ["nothing.jsonl", "x" * 300, "a\0b", "", "."])
def test_what_is_not_here_has_no_facts(tmp_path: Path, path: str) -> None:
    assert data_facts(path, Places((tmp_path,))) is None
    assert model_facts(path, Places((tmp_path,))) is None


def test_the_folder_of_the_flow_comes_first(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        written(folder, "d.jsonl", json.dumps({folder.name: 1}))
    facts = data_facts("d.jsonl", Places((here, there)))
    assert facts and facts.columns == {"here": "int"}


def test_a_model_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "config.json", '{"n_positions": 64, "vocab_size": 100}')
    facts = model_facts(".", Places((tmp_path,)))
    assert facts and (facts.max_positions, facts.vocabulary, facts.tokenizer) == (64, 100, None)
    cached = tmp_path / "hub" / "models--owner--name" / "snapshots" / "abc"
    cached.mkdir(parents=True)
    written(cached, "config.json", '{"max_position_embeddings": 128}')
    written(cached, "tokenizer.json", "{}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    facts = model_facts("owner/name", Places((tmp_path,)))
    assert facts and facts.max_positions == 128 and facts.tokenizer


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_broken_configuration_is_a_problem(tmp_path: Path, content: str) -> None:
    facts = model_facts(".", written(tmp_path, "config.json", content))
    assert facts and facts.problem
