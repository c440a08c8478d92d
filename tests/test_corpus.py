"""Corpus files -> (id, text, kept columns)."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_jsonl
from hypothesis import given
from hypothesis import strategies as st

from retrieval.corpus.files import natural_key
from retrieval.corpus.lines import decoded_lines
from retrieval.corpus.reader import Corpus, CorpusOptions, is_blank
from retrieval.errors import CorpusError, UsageError

TEXTS = ["怎么退货", "快递到哪了", "can I get a refund?"]


def read(*sources: str | Path, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in Corpus(sources, CorpusOptions(**options)).batches() for row in batch.to_pylist()]


def texts(*sources: str | Path, **options: Any) -> list[str]:
    return [row["text"] for row in read(*sources, **options)]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(TEXTS, pa.string()),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array(TEXTS, pa.string_view()),
    ],
    ids=["string", "large_string", "dictionary", "string_view"],
)
def test_parquet_reads_every_kind_of_string_column(tmp_path: Path, array: pa.Array) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3], "标题": array}), tmp_path / "c.parquet")
    assert texts(tmp_path / "c.parquet") == TEXTS


def test_parquet_null_texts_are_skipped_and_keep_their_row_numbers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["一", None, "二", "", " \u3000"]}), tmp_path / "c.parquet")
    corpus = Corpus([tmp_path / "c.parquet"])
    rows = [row for batch in corpus.batches() for row in batch.to_pylist()]
    assert [(row["id"], row["text"]) for row in rows] == [("0", "一"), ("2", "二")]
    assert (corpus.rows, corpus.skipped, corpus.first_skipped) == (5, 3, [1, 3, 4])


def test_parquet_nested_path_reads_the_inner_column_and_null_parents_are_null(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([{"b": "一", "n": 1}, None, {"b": None, "n": 2}, {"b": "二", "n": 3}])})
    pq.write_table(table, tmp_path / "c.parquet")
    assert texts(tmp_path / "c.parquet", text_column="a.b") == ["一", "二"]
    assert read(tmp_path / "c.parquet", text_column="a.b", keep=("a.n",))[1] == {"id": "3", "text": "二", "a.n": 3}


def test_parquet_column_whose_name_holds_a_dot_wins_over_a_path(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": ["plain"], "a": [{"b": "nested"}]}), tmp_path / "c.parquet")
    assert texts(tmp_path / "c.parquet", text_column="a.b") == ["plain"]


def test_parquet_many_row_groups_come_in_order(tmp_path: Path) -> None:
    many = [f"text {i}" for i in range(20_000)]
    pq.write_table(pa.table({"text": many}), tmp_path / "c.parquet", row_group_size=700)
    rows = read(tmp_path / "c.parquet")
    assert [row["text"] for row in rows] == many
    assert [row["id"] for row in rows] == [str(i) for i in range(20_000)]


def test_kept_columns_keep_their_parquet_types(tmp_path: Path) -> None:
    table = pa.table({"text": TEXTS, "year": [2023, 2024, None], "tag": pa.array(["a", "b", "a"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "c.parquet")
    rows = read(tmp_path / "c.parquet", text_column="text", keep=("year", "tag"))
    assert rows[1] == {"id": "1", "text": TEXTS[1], "year": 2024, "tag": "b"}
    assert rows[2]["year"] is None


def test_whole_number_ids_become_strings(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": TEXTS, "key": [7, 8, 9]}), tmp_path / "c.parquet")
    assert [row["id"] for row in read(tmp_path / "c.parquet", id_column="key")] == ["7", "8", "9"]


def test_csv_values_may_hold_commas_quotes_and_line_breaks(tmp_path: Path) -> None:
    content = 'id,text\r\n007,"a, ""b""\nc"\r\n008,plain\r\n'
    (tmp_path / "c.csv").write_bytes(content.encode())
    rows = read(tmp_path / "c.csv", id_column="id")
    assert [(row["id"], row["text"]) for row in rows] == [("007", 'a, "b"\nc'), ("008", "plain")]


def test_csv_value_may_be_longer_than_the_modules_own_limit(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(f"text,n\n{'长' * 200_000},1\n", encoding="utf-8")
    assert [len(text) for text in texts(tmp_path / "c.csv", text_column="text")] == [200_000]


def test_tsv_quotation_marks_are_plain_characters(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text('text\tn\n"open\t1\na "b" c\t2\n', encoding="utf-8")
    assert texts(tmp_path / "c.tsv", text_column="text") == ['"open', 'a "b" c']


def test_jsonl_is_split_on_line_feeds_only(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"text": "a\u2028b\x85c"}\n\n{"text": "d"}\n', encoding="utf-8")
    assert texts(tmp_path / "c.jsonl") == ["a\u2028b\x85c", "d"]


def test_jsonl_missing_null_and_nan_texts_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "a"}\n{"text": NaN}\n{"text": null}\n{"other": 1}\n{"text": "b"}\n', encoding="utf-8")
    assert [(row["id"], row["text"]) for row in read(path)] == [("0", "a"), ("4", "b")]


def test_jsonl_nested_fields_and_kept_values(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "c.jsonl",
        [{"q": {"zh": "一"}, "n": 1, "x": 1, "tags": ["a"]}, {"q": {"zh": "二"}, "n": 2, "x": 2.5, "tags": None}],
    )
    rows = read(path, text_column="q.zh", keep=("n", "x", "tags"))
    assert rows[0] == {"id": "0", "text": "一", "n": 1, "x": 1.0, "tags": '["a"]'}
    assert rows[1] == {"id": "1", "text": "二", "n": 2, "x": 2.5, "tags": None}


def test_plain_text_is_a_document_a_line_with_or_without_a_last_line_feed(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_bytes("一\r\n二\u2028三\n四".encode())
    assert texts(tmp_path / "c.txt") == ["一", "二\u2028三", "四"]


def test_compressed_files_read_like_plain_ones_even_of_several_members(tmp_path: Path) -> None:
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress("一\n".encode()) + gzip.compress("二\n".encode()))
    with pa.CompressedOutputStream(str(tmp_path / "d.jsonl.zst"), "zstd") as file:
        file.write('{"text": "三"}\n'.encode())
    with (tmp_path / "d.jsonl.zst").open("ab") as file:
        file.write(pa.Codec("zstd").compress('{"text": "四"}\n'.encode(), asbytes=True))
    assert texts(tmp_path / "c.txt.gz") == ["一", "二"]
    assert texts(tmp_path / "d.jsonl.zst") == ["三", "四"]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_file_cut_short_is_an_error(tmp_path: Path, suffix: str) -> None:
    import random

    content = "".join(random.Random(0).choices("abcdefgh \n", k=200_000)).encode()
    whole = gzip.compress(content) if suffix == "gz" else pa.Codec("zstd").compress(content, asbytes=True)
    (tmp_path / f"c.txt.{suffix}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match="damaged or cut short"):
        texts(tmp_path / f"c.txt.{suffix}")


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_bytes(b"\xef\xbb\xbf" + "一\n\ufeff二\n".encode())
    assert texts(tmp_path / "c.txt") == ["一", "\ufeff二"]
    (tmp_path / "c.csv").write_bytes(b"\xef\xbb\xbf" + "text,n\n一,1\n".encode())
    assert texts(tmp_path / "c.csv") == ["一"]


@pytest.mark.parametrize("encoding", ["gb18030", "big5", "utf-16", "utf-16-le"])
def test_other_encodings_are_read_when_named(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "c.txt").write_bytes("問題一\n內容二\n".encode(encoding))
    assert texts(tmp_path / "c.txt", encoding=encoding) == ["問題一", "內容二"]


def test_bytes_that_are_not_utf8_are_named_by_file_line_and_byte(tmp_path: Path) -> None:
    # "第一行" is 9 bytes of UTF-8 and a line feed; two more bytes "ab", then the wrong one at offset 12.
    (tmp_path / "c.txt").write_bytes("第一行\nab".encode() + b"\xb5\xda\n")
    with pytest.raises(CorpusError, match=r"c\.txt line 2: byte 12 \(0xb5\).*--encoding gb18030"):
        texts(tmp_path / "c.txt")


def test_a_wrong_byte_beyond_the_first_chunk_is_named_by_line_and_byte(tmp_path: Path) -> None:
    good = "一二三\n".encode() * 400_000  # 10 bytes each: 4,000,000 bytes, so that several chunks lie before it
    (tmp_path / "c.txt").write_bytes(good + "四".encode()[:2])
    with pytest.raises(CorpusError, match=r"line 400001: byte 4,000,000 "):
        texts(tmp_path / "c.txt")


def test_folders_and_globs_come_in_natural_order_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        (tmp_path / f"part-{number}.txt").write_text(f"{number}\n")
    (tmp_path / ".hidden.txt").write_text("hidden\n")
    (tmp_path / "notes.pdf").write_text("no corpus\n")
    assert texts(tmp_path) == ["1", "9", "10"]
    assert texts(str(tmp_path / "part-*.txt")) == ["1", "9", "10"]
    rows = read(tmp_path / "part-10.txt", tmp_path / "part-1.txt")
    assert [(row["id"], row["text"]) for row in rows] == [("0", "10"), ("1", "1")]


def test_several_files_of_several_formats_are_one_corpus(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["一"], "n": [1]}), tmp_path / "a.parquet")
    write_jsonl(tmp_path / "b.jsonl", [{"text": "二", "n": 2}])
    rows = read(tmp_path / "a.parquet", tmp_path / "b.jsonl", keep=("n",))
    assert rows == [{"id": "0", "text": "一", "n": 1}, {"id": "1", "text": "二", "n": 2}]


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        ({"id": ["x"], "Title": ["t"], "author": ["a"]}, "t"),
        ({"内容": ["c"], "标题": ["t"]}, "t"),
        ({"n": [1], "anything": ["only"]}, "only"),
        ({"text": [1], "question": ["q"]}, "q"),
    ],
)
def test_text_column_is_a_usual_name_or_the_only_text(tmp_path: Path, columns: dict[str, Any], chosen: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    assert texts(tmp_path / "c.parquet") == [chosen]


@pytest.mark.parametrize("columns", [{"x": ["a"], "y": ["b"]}, {"n": [1]}])
def test_text_column_that_is_not_told_is_asked_for_with_the_columns(tmp_path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    with pytest.raises(UsageError, match=f"--text-column; the columns are {next(iter(columns))} "):
        texts(tmp_path / "c.parquet")


@pytest.mark.parametrize(
    ("content", "format"),
    [("一\n二\n".encode(), "text"), ('{"text": "一"}\n{"text": "二"}\n'.encode(), "jsonl")],
)
def test_standard_input_is_told_apart_by_its_first_bytes(
    content: bytes, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for data in (content, gzip.compress(content), pa.Codec("zstd").compress(content, asbytes=True)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
        corpus = Corpus(["-"])
        assert corpus.files[0].format == format
        assert [row["text"] for batch in corpus.batches() for row in batch.to_pylist()] == ["一", "二"]


def test_parquet_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": TEXTS}), sink)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(sink.getvalue()))))
    assert texts("-") == TEXTS


@pytest.mark.parametrize("blank", ["", " ", "\t\r\n", "\u3000", "\ufeff", "\u200b\u00a0", "\x00\x1b"])
def test_texts_that_show_nothing_are_blank(blank: str) -> None:
    assert is_blank(blank)


@pytest.mark.parametrize("text", ["。", "😀", "\ufeffa", "0", "-"])
def test_texts_that_show_anything_are_not_blank(text: str) -> None:
    assert not is_blank(text)


def test_on_empty_error_names_the_file_and_row(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("a\n\nb\n")
    with pytest.raises(CorpusError, match=r"c\.txt: the text of row 1 .* is empty"):
        texts(tmp_path / "c.txt", on_empty="error")


@given(st.integers(1, 120), st.integers(1, 130))
def test_a_sample_holds_rows_of_the_corpus_in_order_and_is_always_the_same(rows: int, count: int) -> None:
    from retrieval.corpus.sampling import sampled

    def part() -> list[int]:
        batches = (pa.RecordBatch.from_pydict({"n": list(range(i, min(i + 7, rows)))}) for i in range(0, rows, 7))
        return [row["n"] for batch in sampled(batches, count) for row in batch.to_pylist()]

    assert len(part()) == min(rows, count)
    assert part() == sorted(set(part())) == part()
    assert set(part()) <= set(range(rows))


def test_every_row_is_sampled_equally_often() -> None:
    from retrieval.corpus.sampling import sampled

    counts = np.zeros(50)
    for seed in range(400):
        batches = iter([pa.RecordBatch.from_pydict({"n": list(range(i, i + 10))}) for i in range(0, 50, 10)])
        for batch in sampled(batches, 10, seed):
            counts[batch.column("n").to_numpy()] += 1
    # Binomial, 400 draws at 1/5: mean 80, standard deviation 8; five deviations.
    assert counts.sum() == 4000
    assert (abs(counts - 80) < 40).all()


def test_sampled_documents_keep_their_row_numbers(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("".join(f"text {i}\n" for i in range(100)))
    rows = read(tmp_path / "c.txt", sample=5)
    assert len(rows) == 5
    assert all(row["text"] == f"text {row['id']}" for row in rows)


def test_kept_columns_of_several_parquet_files_take_the_widest_type(tmp_path: Path) -> None:
    parts = [pa.array([None, None], pa.null()), pa.array([1, 2], pa.int32()), pa.array([2**40, 3], pa.int64())]
    for number, part in enumerate(parts):
        pq.write_table(pa.table({"text": ["a", "b"], "k": part}), tmp_path / f"p{number}.parquet")
    assert [row["k"] for row in read(tmp_path, keep=("k",))] == [None, None, 1, 2, 2**40, 3]


def test_kept_columns_that_do_not_fit_are_named_with_both_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "k": [1]}), tmp_path / "p0.parquet")
    pq.write_table(pa.table({"text": ["a"], "k": ["x"]}), tmp_path / "p1.parquet")
    with pytest.raises(CorpusError, match=r"p1\.parquet: kept column 'k' \(int64, here string\)"):
        read(tmp_path, text_column="text", keep=("k",))


def test_an_empty_csv_cell_is_null_where_the_column_is_a_number(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": "a", "k": 1.5}])
    (tmp_path / "b.csv").write_text("text,k\nb,\nc,2\n")
    assert [row["k"] for row in read(tmp_path, keep=("k",))] == [1.5, None, 2.0]


def test_columns_and_ids_that_cannot_be_are_one_clear_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "tags": [["x"]]}), tmp_path / "c.parquet")
    with pytest.raises(CorpusError, match="the id column 'tags' holds list"):
        read(tmp_path / "c.parquet", id_column="tags")
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), tmp_path / "d.parquet")
    with pytest.raises(CorpusError, match="more than one column named 'text'"):
        read(tmp_path / "d.parquet")
    write_jsonl(tmp_path / "e.jsonl", [{"text": "a", "k": 2**70}])
    with pytest.raises(CorpusError, match="beyond 64 bits"):
        read(tmp_path / "e.jsonl", keep=("k",))
    with pytest.raises(UsageError, match="unknown encoding 'base64'"):
        read(tmp_path / "e.jsonl", encoding="base64")
    with pytest.raises(UsageError, match="expected a tuple of column names"):
        read(tmp_path / "e.jsonl", keep="k")


def test_natural_key_compares_numbers_as_numbers() -> None:
    names = ["a10", "a9", "a10b", "b", "a9.5", "10", "9"]
    assert sorted(names, key=lambda name: natural_key(Path(name))) == ["9", "10", "a9", "a9.5", "a10", "a10b", "b"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=20), min_size=1))
def test_decoded_lines_joined_are_the_text(lines: list[str]) -> None:
    content = "\n".join(lines)
    expected = content.removeprefix("\ufeff")
    assert "".join(decoded_lines(io.BytesIO(content.encode()), "x")) == expected
