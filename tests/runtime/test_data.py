"""Tables of every format, the row to blame when one is malformed, and the order in which rows are handed out."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.runtime.data import DataError, Reader, Table, epoch_order, open_table
from shardflow.runtime.data import table as table_module

ROWS: list[dict[str, Any]] = [
    {
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"What is {i}+{i}? é"}],
        "answer": str(2 * i),
        "level": i,
        "weight": float(i) if i else 0,
        "hard": i > 1,
        "tags": ["sum"] * i,
    }
    for i in range(4)
]


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path.name


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_rows(table: Table) -> list[dict[str, Any]]:
    columns = table.take(range(len(table)))
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def parquet_of(rows: list[dict[str, Any]], file: Path) -> str:
    import datasets

    datasets.Dataset.from_list(rows).to_parquet(str(file))
    return file.name


FORMATS: dict[str, Callable[[Path], str]] = {
    "jsonl": lambda d: write(d / "t.jsonl", jsonl(ROWS)),
    "jsonl with BOM, CRLF and blank lines": lambda d: write(
        d / "t.jsonl", b"\xef\xbb\xbf" + jsonl(ROWS).replace("\n", "\r\n\r\n").encode()
    ),
    "json list": lambda d: write(d / "t.json", json.dumps(ROWS, indent=1)),
    "json data": lambda d: write(d / "t.json", json.dumps({"about": {"data": [1]}, "data": ROWS, "n": 4})),
    "parquet": lambda d: parquet_of(ROWS, d / "t.parquet"),
}


@pytest.mark.parametrize("format", FORMATS)
def test_formats_give_the_same_rows(tmp_path: Path, format: str) -> None:
    table = open_table(FORMATS[format](tmp_path), tmp_path)
    assert table.columns == tuple(ROWS[0])
    assert len(table) == 4
    assert as_rows(table) == ROWS
    assert all(type(value) is float for value in table.take([0, 1])["weight"])
    assert table.take([3, 1, 3])["level"] == [3, 1, 3]


def test_csv(tmp_path: Path) -> None:
    text = 'prompt,answer,level,weight,hard\n"Say ""hi"",\nplease",007,1,2,true\n\nb,12,2,0.5,False\n'
    table = open_table(write(tmp_path / "t.csv", text), tmp_path)
    assert as_rows(table) == [
        {"prompt": 'Say "hi",\nplease', "answer": "007", "level": 1, "weight": 2.0, "hard": True},
        {"prompt": "b", "answer": "12", "level": 2, "weight": 0.5, "hard": False},
    ]


def test_large_files_lie_on_disk_with_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [*ROWS, {**ROWS[0], "weight": 2, "tags": [{"a": 1}, {"b": None}]}]
    name = write(tmp_path / "t.jsonl", jsonl(rows))
    in_memory = open_table(name, tmp_path)
    monkeypatch.setattr(table_module, "IN_MEMORY_BYTES", 0)
    on_disk = open_table(name, tmp_path)
    assert as_rows(on_disk) == as_rows(in_memory) == rows
    assert on_disk.fingerprint == in_memory.fingerprint
    assert any((tmp_path / "cache").rglob("*.arrow"))


def test_dataset_folder_with_splits(tmp_path: Path) -> None:
    (tmp_path / "sums").mkdir()
    parquet_of(ROWS, tmp_path / "sums" / "train.parquet")
    parquet_of(ROWS[:2], tmp_path / "sums" / "test.parquet")
    train, test = open_table("sums", tmp_path), open_table("sums", tmp_path, split="test")
    assert as_rows(train) == ROWS and as_rows(test) == ROWS[:2]
    assert train.fingerprint != test.fingerprint
    with pytest.raises(DataError, match=r"sums: .*split='dev'.*Unknown split"):
        open_table("sums", tmp_path, split="dev")


def test_old_style_messages_are_unzipped() -> None:
    from shardflow.runtime.data.stores import DatasetRows

    class Fake(list[Any]):
        column_names = ("prompt",)

        def __getitem__(self, indices: Any) -> Any:
            return {"prompt": [super(Fake, self).__getitem__(i) for i in indices]}

    rows = DatasetRows(Fake([{"role": ["user", "assistant"], "content": ["a", "b"]}]))
    assert rows.take([0])["prompt"] == [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]]


def test_taken_lists_are_copies(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "t.jsonl", jsonl(ROWS)), tmp_path)
    table.take([0])["prompt"][0].clear()
    assert table.take([0])["prompt"] == [ROWS[0]["prompt"]]


def test_take_refuses_rows_that_are_not_there(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "t.jsonl", jsonl(ROWS)), tmp_path)
    for index in (-1, 4):
        with pytest.raises(IndexError, match=f"row {index} of a table of 4 rows"):
            table.take([index])


def test_null_in_the_first_row_makes_a_column_optional(tmp_path: Path) -> None:
    name = write(tmp_path / "t.jsonl", '{"a": null}\n{"a": "x"}\n{"a": null}\n')
    assert open_table(name, tmp_path).take([0, 1, 2])["a"] == [None, "x", None]


MALFORMED: list[tuple[str, str | bytes, int | None, str]] = [
    ("json.jsonl", '{"a": 1}\n{"a": }\n', 2, r"malformed JSON: Expecting value \(column 7\)"),
    ("cut.jsonl", '{"a": 1}\n{"a": 2', 2, "malformed JSON"),
    ("list.jsonl", '{"a": 1}\n\n[1]\n', 3, "the row is a list, not an object"),
    ("text.jsonl", '"a"\n', 1, "the row is a string, not an object"),
    ("missing.jsonl", '{"a": 1, "b": 2}\n{"a": 1}\n', 2, "the column 'b' is missing"),
    ("extra.jsonl", '{"a": 1}\n{"a": 1, "c": 2}\n', 2, "the column 'c' isn't in the first row"),
    ("misspelt.jsonl", '{"answer": 1}\n{"anwser": 1}\n', 2, r"'anwser' \(did you mean 'answer'\?\)"),
    ("type.jsonl", '{"a": "x"}\n{"a": 3}\n', 2, r"is an integer \(3\); in the first row \(line 1\) it is a string"),
    ("null.jsonl", '{"a": "x"}\n{"a": null}\n', 2, "is null; in the first row"),
    ("bool.jsonl", '{"a": 1}\n{"a": true}\n', 2, "is a truth value"),
    ("chat.jsonl", '{"p": [{"role": "user", "content": "x"}]}\n{"p": [{"role": "user"}]}\n', 2, "chat messages"),
    ("huge.jsonl", '{"a": 1}\n{"a": 9223372036854775808}\n', 2, "64 bits"),
    ("nan.jsonl", '{"a": 1.0}\n{"a": NaN}\n', 2, "NaN is no JSON value"),
    ("deep.jsonl", '{"a": 1}\n' + "[" * 100_000, 2, "nested too deeply"),
    ("encoding.jsonl", b'{"a": "x"}\n{"a": "\xe9"}\n', 2, "isn't UTF-8 .byte 0xe9 at position 8"),
    ("utf16.jsonl", '{"a": "x"}\n'.encode("utf-16"), 1, "isn't UTF-8"),
    ("empty.jsonl", "\n", None, "the file has no rows"),
    ("no-columns.jsonl", "{}\n", 1, "the row has no columns"),
    ("syntax.json", '[{"a": 1},\n{"a": 2}\n{"a": 3}]', 3, "malformed JSON: Expecting ',' delimiter"),
    ("columns.json", '[{"a": 1},\n {"a": [2,\n 3]}, {"b": 3}]', 2, "is a list"),
    ("item.json", '{"x": [1],\n"data": [{"a": 1},\n\n4]}', 4, "the row is a number, not an object"),
    ("key.json", '{"rows": []}', 1, "the file holds an object with 'rows'"),
    ("value.json", "3", 1, "the file holds a single value"),
    ("none.json", "[]", None, "the file has no rows"),
    ("encoding.json", b'[{"a": "x"},\n{"a": "\xff"}]', 2, "isn't UTF-8 .byte 0xff at position 8"),
    ("long.csv", 'a,b\n1,"x\ny"\n1,2,3\n', 4, r"the row has 3 fields; the header has 2 \(a, b\)"),
    ("short.csv", "a,b\n1\n", 2, "the row has 1 fields"),
    ("type.csv", "a,b\n1,x\nz,y\n", 3, "the column 'a' is a string"),
    ("blank.csv", "a,b\n1,x\n,y\n", 3, "the column 'a' is a string"),
    ("quote.csv", 'a,b\n1,x\n2,"y\n3,z\n', 3, "malformed CSV"),
    ("twice.csv", "a,a\n1,2\n", 1, "the header has the column 'a' 2 times"),
    ("nameless.csv", "a,\n1,2\n", 1, "column 2 of the header has no name"),
    ("header.csv", "a,b\n", None, "the file has no rows"),
    ("empty.csv", "", None, "the file has no rows"),
    ("broken.parquet", "PAR1", None, "can't be read as Parquet"),
    ("table.xlsx", "", None, "'.xlsx' is no format of data"),
]


@pytest.mark.parametrize(("name", "content", "line", "cause"), MALFORMED, ids=[case[0] for case in MALFORMED])
def test_malformed_files_name_the_line(
    tmp_path: Path, name: str, content: str | bytes, line: int | None, cause: str
) -> None:
    write(tmp_path / name, content)
    with pytest.raises(DataError, match=cause) as caught:
        open_table(name, tmp_path)
    assert caught.value.line == line
    head, help = str(caught.value).split("\n")
    assert head.startswith(f"{name}, line {line}: " if line else f"{name}: ")
    assert help.startswith("  ") and help.endswith(".")


def test_missing_files(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", jsonl(ROWS))
    with pytest.raises(DataError, match=r"(?s)there is no such file .*Did you mean train.jsonl\?"):
        open_table("tran.jsonl", tmp_path)
    with pytest.raises(DataError, match=r"(?s)there is no such file .*relative to the flow's folder"):
        open_table("data/gsm8k.txt", tmp_path)
    with pytest.raises(DataError, match=r"(?s)as a dataset \(split='train', name='x'\) it can't be loaded"):
        open_table("no dataset/is called this", tmp_path, name="x")


def test_files_have_no_splits(tmp_path: Path) -> None:
    name = write(tmp_path / "t.jsonl", jsonl(ROWS))
    with pytest.raises(DataError, match="a file has no splits"):
        open_table(name, tmp_path, split="test")


def test_small_files_do_not_import_datasets(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl", jsonl(ROWS))
    code = (
        "import sys; from pathlib import Path; from shardflow.runtime.data import open_table\n"
        f"assert len(open_table('t.jsonl', Path({str(tmp_path)!r}))) == 4\n"
        "assert not {'datasets', 'torch', 'pandas', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


lengths = st.integers(1, 40)
seeds = st.integers(-5, 2**40)
keys = st.text(max_size=5)


@given(lengths, seeds, keys, st.integers(0, 5))
def test_each_epoch_is_a_permutation(length: int, seed: int, key: str, epoch: int) -> None:
    reader = Reader(range(length), key=key, seed=seed, shuffle=True)
    assert sorted(reader.indices(epoch * length, length)) == list(range(length))


@given(lengths, seeds, st.integers(0, 200), st.lists(st.integers(0, 70), max_size=6), st.booleans())
def test_any_split_of_positions_gives_the_same_rows(
    length: int, seed: int, start: int, counts: list[int], shuffle: bool
) -> None:
    reader = Reader(range(length), key="read", seed=seed, shuffle=shuffle)
    parts: list[int] = []
    for count in counts:
        parts += reader.indices(start + len(parts), count)
    assert parts == Reader(range(length), key="read", seed=seed, shuffle=shuffle).indices(start, sum(counts))


@given(lengths, seeds)
def test_straddling_is_concatenation(length: int, seed: int) -> None:
    epochs = [epoch_order(length, seed=seed, key="read", epoch=e).tolist() for e in range(3)]
    reader = Reader(range(length), key="read", seed=seed, shuffle=True)
    assert reader.indices(0, 3 * length) == epochs[0] + epochs[1] + epochs[2]
    assert reader.indices(length - 1, 2) == [epochs[0][-1], epochs[1][0]]


def test_orders_differ_by_epoch_seed_and_key_and_never_by_version() -> None:
    order = epoch_order(8, seed=0, key="prompts", epoch=0).tolist()
    assert order == [5, 1, 6, 3, 4, 7, 2, 0]  # written down once: a change would break every resumed run
    others = [
        epoch_order(100, seed=seed, key=key, epoch=epoch).tolist()
        for seed, key, epoch in ((0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1))
    ]
    assert len({tuple(other) for other in others}) == 4


def test_reading_in_file_order() -> None:
    reader = Reader(range(3), key="k", seed=7, shuffle=False)
    assert reader.indices(2, 5) == [2, 0, 1, 2, 0]
    assert reader.epochs_done(4) == pytest.approx(4 / 3)
    with pytest.raises(ValueError, match="can't be negative"):
        reader.indices(-1, 2)
