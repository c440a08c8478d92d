"""What a search is measured on: documents, queries and judgements, out of labelled sets or the user's own files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from retrieval.corpus.files import CorpusFile
from retrieval.corpus.lines import decoded_lines
from retrieval.corpus.reader import Corpus, CorpusOptions
from retrieval.corpus.records import json_records
from retrieval.errors import CorpusError, UsageError
from retrieval.evaluation.correlation import is_binary
from retrieval.evaluation.datasets import DATASETS, Dataset, Form, find_split, load_dataset
from retrieval.evaluation.pairs import Pairs, md5_of, read_pairs
from retrieval.evaluation.ranking import without_relevant
from retrieval.evaluation.trec import read_qrels
from retrieval.types import Qrels

PASSAGES, TITLES = "cmrc2018", "qbqtc"
ID_COLUMNS = ("_id", "id", "doc_id", "query_id")
_SETS = {
    PASSAGES: Dataset(
        PASSAGES,
        tuple(
            Form(f"cmrc2018/{folder}cmrc2018_{{}}.json", ("train", "dev", "test"))
            for folder in ("", "squad-style-data/")
        ),
        "https://github.com/ymcui/cmrc2018 (squad-style-data)",
        unlabelled=("test",),
    ),
    TITLES: Dataset(
        TITLES,
        tuple(Form(f"{folder}/{{}}.json", ("train", "dev", "test_public")) for folder in ("qbqtc", "QBQTC/dataset")),
        "https://github.com/CLUEbenchmark/QBQTC",
    ),
}
RETRIEVAL_SETS = ("lcqmc", *_SETS)


@dataclass(frozen=True)
class Source:
    """A file that a task was made from."""

    path: str
    md5: str


@dataclass(frozen=True)
class RetrievalTask:
    """Queries to be asked of documents, with judgements. Ids are unique, and so are the texts of a set's documents."""

    name: str
    split: str
    """Empty for files of the user's."""
    kind: str
    """What is asked of what, in words."""
    documents: dict[str, str]
    """doc_id -> text."""
    queries: dict[str, str]
    """query_id -> text; each has a relevant document."""
    qrels: Qrels
    """Of these queries, about these documents."""
    sources: tuple[Source, ...]
    symmetric: bool = False
    """Whether queries and documents are of one kind: encoders that have a prompt for passages leave it out then."""
    own: dict[str, str] = field(default_factory=dict)
    """query_id -> the document that is the query itself, which is left out of its ranking."""
    duplicates: dict[str, list[str]] = field(default_factory=dict)
    """Exact duplicates: what they are, in words -> their texts."""
    notes: tuple[str, ...] = ()
    """What the reader of a figure has to know."""

    @property
    def title(self) -> str:
        """`lcqmc test`, or the paths of the user's files."""
        return f"{self.name} {self.split}".strip()


def known_item_task(pairs: Pairs, distractors: Path | None = None) -> RetrievalTask:
    """Pairs as a search: the first sentence of each positive pair is asked of all distinct sentences.

    Every sentence that a positive pair joins with the query is relevant, whichever of the two comes first in the pair;
    those that negative pairs join with it are judged, and not relevant. The query's own row is left out of its ranking.

    Parameters
    ----------
    pairs : with labels 0 and 1.
    distractors : a corpus of texts to hide the sentences among; one that is a sentence of the pairs already is not
        added again.

    Raises
    ------
    UsageError
        The labels are graded.
    CorpusError
        No pair is positive, or the distractors cannot be read.
    """
    if not is_binary(pairs.labels):
        raise UsageError(f"{pairs.title} has graded labels: known items come from pairs with labels 0 and 1")
    documents = {f"s{number}": text for number, text in enumerate(pairs.texts, 1)}
    id_of = {text: name for name, text in documents.items()}
    sources = [Source(pairs.path, pairs.md5)]
    duplicates = {
        "pairs of a sentence with itself, which ask for nothing": [
            one for one, other in zip(pairs.first, pairs.second, strict=True) if one == other
        ]
    }
    qrels: Qrels = {}
    asked: dict[str, str] = {}
    for one, other, label in zip(pairs.first, pairs.second, pairs.labels, strict=True):
        if one == other:
            continue
        for query, document in ((one, other), (other, one)):
            judged = qrels.setdefault(id_of[query], {})
            judged[id_of[document]] = max(int(label), judged.get(id_of[document], 0))
        if label == 1:
            asked[id_of[one]] = one
    if distractors is not None:
        found = read_documents(distractors)
        same = [text for text in found.values() if text in id_of]
        new = {text: f"x{name}" for name, text in reversed(found.items()) if text not in id_of}
        twice = [text for name, text in found.items() if text not in id_of and new[text] != f"x{name}"]
        documents |= {name: text for text, name in reversed(new.items())}
        sources.append(_source(distractors))
        duplicates |= {
            "distractors that are sentences of the set, and count as those": same,
            "distractors that are there twice, and count once": twice,
        }
    if not asked:
        raise CorpusError(f"{pairs.title} has no positive pair of two sentences: there is nothing to look for")
    return RetrievalTask(
        pairs.name,
        pairs.split,
        "known items: the first sentence of each positive pair, asked of all distinct sentences"
        + (f" and {len(documents) - len(pairs.texts):,} distractors" if distractors else ""),
        documents,
        asked,
        {query: qrels[query] for query in asked},
        tuple(sources),
        symmetric=True,
        own={query: query for query in asked},
        duplicates=_there(duplicates),
        notes=(
            "the query's own row is left out of its ranking",
            "judging gap: only pairs of the set are judged. Other paraphrases of a query, among the sentences"
            f"{' and distractors' if distractors else ''}, count as wrong: values are lower bounds",
        ),
    )


def passages_task(split: str | None, folder: Path | None) -> RetrievalTask:
    """CMRC 2018 as a search: each question is asked of all passages of the split, its own being relevant."""
    split, path = _found(PASSAGES, split, folder)
    documents: dict[str, str] = {}
    rows: list[_Judged] = []
    try:
        for article in _json(path)["data"]:
            for paragraph in article["paragraphs"]:
                # The official files have the passage's id with it, SQuAD's own form has none.
                name = str(paragraph.get("id") or f"p{len(documents) + 1}")
                if documents.setdefault(name, paragraph["context"]) != paragraph["context"]:
                    raise CorpusError(f"{path}: the id {name!r} stands for two passages")
                rows += [(str(asked["id"]), asked["question"], name, 1) for asked in paragraph["qas"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise CorpusError(f"{path} has not the form of SQuAD: data, paragraphs, context, qas ({error!r})") from None
    notes = (
        "judging gap: a question's own passage alone is judged. Others that answer it count as wrong: "
        "values are lower bounds",
    )
    return _task(PASSAGES, split, path, "questions, asked of all passages", documents, rows, notes)


def titles_task(split: str | None, folder: Path | None) -> RetrievalTask:
    """QBQTC as a search: each query is asked of all titles of the split; relevance is 0, 1 or 2."""
    split, path = _found(TITLES, split, folder)
    documents: dict[str, str] = {}
    rows: list[_Judged] = []
    file = CorpusFile(path, "jsonl")
    with file.open() as stream:
        for number, record in json_records(decoded_lines(stream, file.name, option=""), file):
            try:
                name, label = str(record["id"]), int(record["label"])
                if f"t{name}" in documents:
                    raise CorpusError(f"{path} line {number}: the id {name!r} is there twice")
                documents[f"t{name}"] = record["title"]
                rows.append((f"q{name}", record["query"], f"t{name}", label))
            except (KeyError, TypeError, ValueError):
                raise CorpusError(
                    f"{path} line {number}: expected id, query, title and label (a whole number)"
                ) from None
    notes = (
        "labels 1 and 2 are relevant; nDCG gains 1 and 2",
        "judging gap: about one title a query is judged. Titles of other queries that fit count as wrong: "
        "values are lower bounds",
    )
    return _task(TITLES, split, path, "search queries, asked of all titles", documents, rows, notes)


def files_task(corpus: Path, queries: Path, qrels: Path) -> RetrievalTask:
    """The user's own: documents and queries as `read_documents` takes them, judgements as `read_qrels` does.

    Raises
    ------
    CorpusError
        A file cannot be read, or the judgements are about other queries or documents.
    """
    documents, asked, judged = read_documents(corpus), read_documents(queries), read_qrels(qrels)
    known = {query: found for query, found in judged.items() if query in asked}
    if not known:
        raise CorpusError(
            f"{qrels} judges none of the queries of {queries}: the ids differ, for example "
            f"{next(iter(judged))!r} there and {next(iter(asked))!r} here"
        )
    within = {
        query: {document: grade for document, grade in found.items() if document in documents}
        for query, found in known.items()
    }
    lost = sum(map(len, known.values())) - sum(map(len, within.values()))
    if lost and not any(within.values()):
        document = next(document for found in known.values() for document in found)
        raise CorpusError(
            f"{qrels} judges none of the documents of {corpus}: the ids differ, for example "
            f"{document!r} there and {next(iter(documents))!r} here"
        )
    notes = []
    if lost:
        notes.append(f"{lost:,} judgements are about documents that the corpus does not hold: they cannot be found")
    if unknown := len(judged) - len(known):
        notes.append(f"{unknown:,} judged queries are not among the queries, and left out")
    if unjudged := len(asked) - len(known):
        notes.append(f"{unjudged:,} queries are not judged, and left out")
    notes.append("judging gap: documents that nobody judged count as wrong: values are lower bounds")
    task = RetrievalTask(
        str(qrels),
        "",
        f"queries of {queries}, asked of {corpus}",
        documents,
        {query: asked[query] for query in known},
        known,
        (_source(qrels), _source(queries), _source(corpus)),
        notes=tuple(notes),
    )
    return _answerable(task)


def beir_task(folder: Path, split: str | None) -> RetrievalTask:
    """A folder as BEIR has it: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv (test unless another is named)."""
    qrels = folder / "qrels" / f"{split or 'test'}.tsv"
    for path in (folder / "corpus.jsonl", folder / "queries.jsonl", qrels):
        if not path.is_file():
            raise CorpusError(f"no such file: '{path}'; a folder is expected to hold what BEIR's do")
    return files_task(folder / "corpus.jsonl", folder / "queries.jsonl", qrels)


def read_documents(path: Path) -> dict[str, str]:
    """id -> text, of a file that `retr index` reads; blank texts are left out.

    The id is the first of ID_COLUMNS that the file has, else the row number from 0. A column `title` beside a column
    `text` is put before it, as BEIR does.

    Raises
    ------
    CorpusError
        The file is missing or malformed, or an id is there twice.
    """
    found: dict[str, str] = {}
    for batch in _identified_batches(path):
        columns = batch.to_pydict()
        titles = columns.get("title", [None] * batch.num_rows)
        for name, title, text in zip(columns["id"], titles, columns["text"], strict=True):
            if name in found:
                raise CorpusError(f"{path}: the id {name!r} is there twice")
            found[name] = f"{title} {text}".strip() if title else text
    return found


def save_task(task: RetrievalTask, folder: Path) -> None:
    """Write a task as BEIR has it, for `beir_task` and other programs; the folder is new, or empty.

    Raises
    ------
    UsageError
        Something is there already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"'{folder}' is there already, and is not an empty folder: name another")
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", task.documents), ("queries", task.queries)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for key, text in texts.items():
                file.write(json.dumps({"_id": key, "text": text}, ensure_ascii=False) + "\n")
    with (folder / "qrels" / "test.tsv").open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query, found in task.qrels.items():
            file.writelines(f"{query}\t{document}\t{grade}\n" for document, grade in found.items())


_Judged = tuple[str, str, str, int]  # query_id, query, doc_id, relevance


def _task(
    name: str,
    split: str,
    path: Path,
    kind: str,
    documents: dict[str, str],
    rows: Iterable[_Judged],
    notes: tuple[str, ...],
) -> RetrievalTask:
    """Equal texts are one document or one query, by the first id; of two judgements of one pair the larger counts."""
    for key, text in documents.items():
        if not isinstance(text, str):
            raise CorpusError(f"{path}: document {key!r} is {str(text)[:30]!r}, expected a text")
    first_document: dict[str, str] = {}
    first_query: dict[str, str] = {}
    twice = [text for key, text in documents.items() if first_document.setdefault(text, key) != key]
    asked_twice, qrels, queries = [], dict[str, dict[str, int]](), dict[str, str]()
    for key, query, document, grade in rows:
        if not isinstance(query, str):
            raise CorpusError(f"{path}: query {key!r} is {str(query)[:30]!r}, expected a text")
        known = first_query.setdefault(query, key)
        if known != key:
            asked_twice.append(query)
        queries[known] = query
        judged = qrels.setdefault(known, {})
        document = first_document[documents[document]]
        judged[document] = max(grade, judged.get(document, 0))
    task = RetrievalTask(
        name,
        split,
        kind,
        {key: text for text, key in first_document.items()},
        queries,
        qrels,
        (_source(path),),
        duplicates=_there(
            {
                "documents that are there twice, and count once": list(dict.fromkeys(twice)),
                "queries that are there twice, and are asked once for all that is judged": list(
                    dict.fromkeys(asked_twice)
                ),
            }
        ),
        notes=notes,
    )
    return _answerable(task)


def _answerable(task: RetrievalTask) -> RetrievalTask:
    """Without the queries that have no relevant document."""
    lost = set(without_relevant(task.qrels))
    if not lost:
        return task
    if len(lost) == len(task.qrels):
        raise CorpusError(f"{task.title} judges no document relevant for any query: there is nothing to measure")
    return replace(
        task,
        queries={query: text for query, text in task.queries.items() if query not in lost},
        qrels={query: found for query, found in task.qrels.items() if query not in lost},
        notes=(*task.notes, f"{len(lost):,} queries have no relevant document, and are left out"),
    )


def _identified_batches(path: Path) -> Iterator[Any]:
    for column in ID_COLUMNS:
        for keep in (("title",), ()):
            corpus = Corpus([str(path)], CorpusOptions("text" if keep else None, column, keep))
            try:
                first = next(batches := corpus.batches())
            except UsageError:  # there is no such column
                continue
            yield first
            yield from batches
            return
    yield from Corpus([str(path)], CorpusOptions()).batches()


def _found(name: str, split: str | None, folder: Path | None) -> tuple[str, Path]:
    wanted = split or _SETS[name].measured
    return wanted, find_split(_SETS[name], wanted, folder)[1]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{path} is not JSON in UTF-8: {error}") from None


def _source(path: Path) -> Source:
    return Source(str(path), md5_of(path) if path.is_file() else "")


def _there(duplicates: dict[str, list[str]]) -> dict[str, list[str]]:
    return {what: texts for what, texts in duplicates.items() if texts}


def make_retrieval_task(
    source: str, *, folder: Path | None = None, split: str | None = None, distractors: Path | None = None
) -> RetrievalTask:
    """Make the task that a set's name, a file of pairs or a folder in BEIR's form means.

    Raises
    ------
    UsageError
        There is no such set, file or folder, or distractors are given where the documents are known.
    CorpusError
        A file is missing or malformed.
    """
    name, path = source.lower(), Path(source).expanduser()
    if name in DATASETS:
        dataset = DATASETS[name]
        return known_item_task(load_dataset(name, split or dataset.measured, folder), distractors)
    if path.is_file():
        return known_item_task(read_pairs(source), distractors)
    if distractors is not None:
        raise UsageError(f"--distractors is for sets of pairs such as lcqmc; {source} has documents of its own")
    if name == PASSAGES:
        return passages_task(split, folder)
    if name == TITLES:
        return titles_task(split, folder)
    if path.is_dir():
        return beir_task(path, split)
    raise UsageError(
        f"nothing to retrieve from is called {source!r}: expected {', '.join(RETRIEVAL_SETS)} or another set of pairs, "
        "a file of pairs, or a folder with corpus.jsonl, queries.jsonl and qrels/test.tsv"
    )
