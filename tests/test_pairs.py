"""Pairs of own files and of the public sets, read exactly."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_jsonl

from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.datasets import DATASETS, load_dataset
from retrieval.evaluation.pairs import read_columns, read_pairs

HEADER = "sentence1\tsentence2\tlabel\n"
ODD = ['"quoted', "it's", "\u3000全角\u3000", "\ufeff带标记", "a\u2028b\x85c", " 空格 "]


def test_tsv_is_read_exactly_without_quoting(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    text = "\ufeff" + HEADER + "".join(f"{one}\t{one}!\t1\r\n" for one in ODD) + "\n"
    path.write_bytes(text.encode())
    pairs = read_pairs(path)
    assert pairs.first == ODD
    assert pairs.second == [f"{one}!" for one in ODD]
    assert pairs.labels.tolist() == [1.0] * len(ODD)
    assert pairs.texts == [*ODD, *(f"{one}!" for one in ODD)]


def test_csv_jsonl_parquet_and_gz_hold_the_same_pairs(tmp_path: Path) -> None:
    rows = [("甲,乙", '说"好"', 0.5), ("丙", "丁", 1)]
    (tmp_path / "a.csv").write_text('label,sentence1,sentence2\n0.5,"甲,乙","说""好"""\n1,丙,丁\n', encoding="utf-8")
    (tmp_path / "a.tsv.gz").write_bytes(
        gzip.compress((HEADER + "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows)).encode())
    )
    records = [{"sentence1": a, "sentence2": b, "label": c, "more": 1} for a, b, c in rows]
    write_jsonl(tmp_path / "a.jsonl", records)
    pq.write_table(
        pa.table({"sentence1": [a for a, _, _ in rows], "sentence2": [b for _, b, _ in rows], "label": [0.5, 1.0]}),
        tmp_path / "a.parquet",
    )
    for name in ("a.csv", "a.tsv.gz", "a.jsonl", "a.parquet"):
        pairs = read_pairs(tmp_path / name)
        assert list(zip(pairs.first, pairs.second, pairs.labels.tolist(), strict=True)) == rows, name


def test_grades_may_stand_in_a_column_named_score(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("score\tsentence1\tsentence2\n\n2.5\t甲\t乙\n", encoding="utf-8")
    pairs = read_pairs(tmp_path / "a.tsv")
    assert (pairs.first, pairs.second, pairs.labels.tolist(), pairs.lines.tolist()) == (["甲"], ["乙"], [2.5], [3])
    assert pairs.sha256 == hashlib.sha256((tmp_path / "a.tsv").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "score\t" + HEADER, "both a column 'score' and one 'label': which is meant"),
        ("a.tsv", HEADER + "甲\t乙\t1\n甲\t1\n", "a.tsv line 3: 2 columns, expected 3"),
        ("a.tsv", HEADER + "甲\t乙\tyes\n", "line 2: the label is 'yes', expected a number"),
        ("a.tsv", HEADER + "甲\t乙\tnan\n", "line 2: the label is 'nan', expected a number"),
        ("a.tsv", HEADER + "甲\t乙\t1_0\n", "line 2: the label is '1_0', expected a number"),
        ("a.tsv", HEADER + "甲\t\t1\n", "line 2: sentence2 is '', expected a text"),
        ("a.tsv", HEADER, "a.tsv holds no pair"),
        ("a.tsv", "", "a.tsv holds no pair"),
        (
            "a.tsv",
            "甲\t乙\t1\n",
            "has no column 'sentence1', expected .* named in the first line; its columns are 甲, 乙, 1",
        ),
        ("a.tsv", "label\t" + HEADER, "more than one column 'label'"),
        ("a.csv", 'sentence1,sentence2,label\n"甲,乙,1\n', "a.csv line 2: the CSV row that begins here is broken"),
        ("a.jsonl", '{"sentence1": "甲", "sentence2": "乙"}\n', "a.jsonl line 1 has no column 'label' or 'score'"),
        ("a.jsonl", '\n{"sentence1": 3, "sentence2": "乙", "label": 1}\n', "line 2: sentence1 is 3, expected a text"),
        ("a.jsonl", '{"sentence1": "甲", "sentence2": null, "label": 1}\n', "line 1: sentence2 is null"),
        ("a.jsonl", '{"sentence1": "\\ud800", "sentence2": "乙", "label": 1}\n', "line 1: sentence1 holds half"),
        ("a.jsonl", '{"sentence1": "甲", "sentence2": "乙", "label": [1]}\n', "line 1: the label is \\[1\\]"),
        ("a.jsonl", f'{{"sentence1": "甲", "sentence2": "乙", "label": 1{"0" * 400}}}\n', "line 1: the label is 10000"),
        ("a.jsonl", '{"sentence1": "甲", "sentence2": "乙", "label": NaN}\n', "line 1: the label is NaN"),
        ("a.parquet", "nonsense", "cannot be read as Parquet"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        read_pairs(tmp_path / name)


def test_a_file_that_is_not_utf8_is_named_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(HEADER.encode() + "甲\t乙\t1\n".encode("gb18030"))
    with pytest.raises(CorpusError, match="line 2: byte"):
        read_pairs(tmp_path / "a.tsv")


def test_text_files_folders_and_standard_input_are_no_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("甲\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("甲\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"is a text file, expected pairs as \.tsv"):
        read_pairs(tmp_path / "a.txt")
    with pytest.raises(UsageError, match="2 files, expected one"):
        read_pairs(tmp_path)
    with pytest.raises(UsageError, match="standard input"):
        read_pairs("-")


def test_sets_are_read_exactly_by_place(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes('\ufeff甲\t"乙\t1\n\ufeff\u3000丙\t丁\t0'.encode())
    pairs = read_columns(path, "x", "test", (0, 1, 2), (3,), header=False)
    assert pairs.first == ["\ufeff甲", "\ufeff\u3000丙"]
    assert pairs.second == ['"乙', "丁"]
    path.write_text("甲\t乙\t1\n\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"a\.txt line 2: 1 columns, expected 3"):
        read_columns(path, "x", "test", (0, 1, 2), (3,), header=False)


def write_set(folder: Path, name: str, content: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode())


def test_every_form_of_the_sets_is_found(tmp_path: Path) -> None:
    write_set(tmp_path, "senteval_cn/LCQMC/LCQMC.valid.data", "甲\t乙\t1\n")
    write_set(tmp_path, "afqmc_public/dev.json", '{"sentence1": "甲", "sentence2": "乙", "label": "0"}\n')
    write_set(
        tmp_path, "stsbenchmark/sts-test.csv", 'g\tf\ty\t1\t2.500\tsay "a\tb\tlicence\tmore\ng\tf\ty\t2\t3\tc\td\n'
    )
    write_set(
        tmp_path, "sick_en/SICK_test_annotated.txt", "id\tA\tB\tscore\tjudgment\r\n6\tno boy\ta boy\t3.3\tNEUTRAL\r\n"
    )
    assert load_dataset("lcqmc", "dev", tmp_path).labels.tolist() == [1]
    assert load_dataset("afqmc", "dev", tmp_path).labels.tolist() == [0]
    english = load_dataset("stsb-en", "test", tmp_path)
    assert (english.first, english.second, english.labels.tolist()) == (['say "a', "c"], ["b", "d"], [2.5, 3])
    sick = load_dataset("sick", "test", tmp_path)
    assert (sick.first, sick.second, sick.labels.tolist()) == (["no boy"], ["a boy"], [3.3])


def test_a_missing_set_says_what_was_looked_for_and_where_it_can_be_had(tmp_path: Path) -> None:
    for name, dataset in DATASETS.items():
        with pytest.raises(CorpusError, match=r"looked for .*\. It can be had from .*; nothing is downloaded"):
            load_dataset(name, dataset.measured, tmp_path)
    with pytest.raises(CorpusError, match="no folder"):
        load_dataset("lcqmc", "test", tmp_path / "none")
    with pytest.raises(UsageError, match="give --data DIR, or set RETR_DATA"):
        load_dataset("lcqmc", "test", None)
    with pytest.raises(UsageError, match="has no split 'valid': expected one of train, dev, test"):
        load_dataset("lcqmc", "valid", tmp_path)
    with pytest.raises(UsageError, match="without labels: use --split train or dev"):
        load_dataset("afqmc", "test", tmp_path)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "split", "n", "positives", "md5"),
    [
        ("lcqmc", "test", 12500, 6250, "8cfdb80f1f6d4f632527f6223795a7c2"),
        ("lcqmc", "dev", 8802, 4402, "089329fb44ef26155baef9c9c8c823ba"),
        ("atec", "test", 20000, 3610, "4851ce07ad546c5cf83c095154381e35"),
        ("bq", "test", 10000, 5000, "92273a1afb213110ac3586313861e115"),
        ("pawsx", "test", 2000, 894, "46624c3d0dd9295e312dfb756b073df7"),
        ("sts-b", "test", 1361, None, "a16b4abe743122383cbe6d140974d711"),
        ("afqmc", "dev", 4316, 1338, "4aca8c1853fbd52eace3036e231bd576"),
        ("afqmc", "train", 34334, 10573, "ad692eca4a69ffebbe7659db334e9a9b"),
        ("stsb-en", "test", 1379, None, "f8c608a4dcfeff4ea11912ea72aacd6e"),
        ("stsb-en", "dev", 1500, None, "d8861ba32277033ed6b1315883894f78"),
        ("sick", "test", 4927, None, "96b31f9b6df521dda0087502a262d8fd"),
        ("sick", "dev", 500, None, "ec3c4b09a703e3e2ab6b003e06e19392"),
    ],
)
def test_real_sets_have_their_rows(
    name: str, split: str, n: int, positives: int | None, md5: str, data_folder: Path
) -> None:
    pairs = load_dataset(name, split, data_folder)
    assert (len(pairs), pairs.md5) == (n, md5)
    if positives is not None:
        assert (pairs.labels == 1).sum() == positives
    if name == "lcqmc" and split == "test":
        assert len(pairs.texts) == 23557
        assert pairs.first[7935].startswith("\ufeff")
