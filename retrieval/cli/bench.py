"""`retr bench`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retrieval.cli.bounds import ThreadsOption
from retrieval.cli.options import (
    DebugOption,
    DeviceOption,
    JsonOption,
    QuietOption,
    TrustOption,
    index_path,
)
from retrieval.cli.output import TerminalProgress, print_json
from retrieval.errors import UsageError

if TYPE_CHECKING:
    from retrieval.evaluation.bench.sources import Source

REPORT = Path("report")
INDEX = "flat,pqfs,ivf-pqfs,hnsw"


def bench(
    index_folder: Annotated[
        Path | None,
        typer.Option(
            "--index-folder",
            "-i",
            help="Index whose stored embeddings are cut and indexed anew. Without it, --vectors and --hdf5: the index "
            "built last under ./indexes.",
            metavar="FOLDER",
        ),
    ] = None,
    dims: Annotated[
        str | None,
        typer.Option(help="Dimensions to keep, apart by commas. Default: all, 256, 128, 64.", metavar="M,M,..."),
    ] = None,
    transform: Annotated[
        str,
        typer.Option(
            help="cut (the first M of the raw vectors), rotate, soft, whiten, apart by commas.", metavar="T,T,..."
        ),
    ] = "whiten,rotate",
    index: Annotated[
        list[str] | None,
        typer.Option(
            help="Kinds of index, apart by commas: flat, flat-fp16, pqfs, hnsw, ... Or one FAISS factory string; may "
            "be given several times. Default: flat,pqfs,ivf-pqfs,hnsw.",
            metavar="KIND,...|FACTORY",
        ),
    ] = None,
    recall: Annotated[
        str,
        typer.Option(
            help="What searches are set to reach, of the exact neighbours once cut; each is a row.", metavar="R,R,..."
        ),
    ] = "0.9,0.95,0.99",
    queries: Annotated[
        Path | None,
        typer.Option(
            help="Queries for -i: a text file, one a line, or a file that retr index reads. Without it, documents are "
            "held out of everything, and are the queries.",
            metavar="FILE",
        ),
    ] = None,
    qrels: Annotated[
        Path | None,
        typer.Option(help="Judgements of --queries (TREC or BEIR): recall, MRR and nDCG of every row.", metavar="FILE"),
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            help="Labelled pairs for every cut of -i: Spearman and known items. A set such as lcqmc, or a file.",
            metavar="SET|FILE",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(envvar="RETR_DATA", help="Folder of the data sets.", metavar="DIR")
    ] = None,
    vectors: Annotated[
        Path | None, typer.Option(help="Vectors of your own instead of an index: .npy, (n, d).", metavar="FILE")
    ] = None,
    query_vectors: Annotated[
        Path | None, typer.Option(help="Queries for --vectors: .npy, (q, d).", metavar="FILE")
    ] = None,
    hdf5: Annotated[
        Path | None, typer.Option(help="A file of ann-benchmarks instead of an index (angular).", metavar="FILE")
    ] = None,
    hdf5_out: Annotated[
        Path | None,
        typer.Option(help="Write the one cut that is named for ann-benchmarks, too.", metavar="FILE"),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Neighbours wanted.", min=1)] = 10,
    hold_out: Annotated[
        int, typer.Option(help="Documents held out as queries, at most a tenth of all.", min=1, metavar="N")
    ] = 1000,
    sample: Annotated[
        int | None, typer.Option(help="Take so many of the vectors, at random.", min=1, metavar="N")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often a batch is timed.", min=1)] = 5,
    threads: ThreadsOption = None,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.", min=0)] = 0,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder of the report; what it has is not measured again.", metavar="DIR"),
    ] = REPORT,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure all anew, whatever the folder has.")] = False,
    device: DeviceOption = "auto",
    trust_remote_code: TrustOption = False,
    as_json: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The table in Markdown.")] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure dimensions x transforms x kinds of index: recall, latency, queries/s, bytes, memory, build time.

    From stored embeddings, on held-out queries, in two recalls: of the exact neighbours in the uncut vectors, and in
    the cut ones, so that the loss of the cut and that of the index are told apart. The first row is exact search on
    the uncut vectors. The folder gets results.json, results.csv, index.html and two charts; a run that is broken off
    goes on when the same command is given again.

    Example: retr bench -i indexes/zhihu --dims 256,128 --transform rotate --index flat,ivf-pqfs --index IVF512,SQ8
    """
    from retrieval.evaluation.bench import report
    from retrieval.evaluation.bench.export import export_cut
    from retrieval.evaluation.bench.grid import parse_cuts, parse_kinds, parse_recalls
    from retrieval.evaluation.bench.labels import Judgements, PairLabels, load_pairs
    from retrieval.evaluation.bench.material import gather
    from retrieval.evaluation.bench.results import CHARTS, Results, check_folder, locked, machine
    from retrieval.evaluation.bench.run import Bench, Plan
    from retrieval.evaluation.charts import check_chart_file
    from retrieval.evaluation.pairs import md5_of
    from retrieval.evaluation.trec import read_qrels
    from retrieval.index.knobs import thread_count

    if as_json and as_markdown:
        raise UsageError("--json and --markdown exclude each other: give one")
    _check_together(index_folder, vectors, query_vectors, hdf5, queries, qrels, pairs, sample)
    kinds, recalls = parse_kinds(index or [INDEX]), parse_recalls(recall)
    output = output.expanduser()
    check_folder(output)
    judged = read_qrels(qrels) if qrels is not None else None
    labelled = load_pairs(pairs, data) if pairs is not None else None
    progress = TerminalProgress(quiet)
    source = _source(index_folder, vectors, query_vectors, hdf5, queries, device, trust_remote_code, progress)
    cuts = parse_cuts(transform, dims, source.dimension)
    if hdf5_out is not None:
        _check_hdf5_out(hdf5_out, len(cuts))
    check_chart_file(Path(CHARTS[0]))
    exact = any(cut.exact(source.dimension) for cut in cuts)
    material = gather(source, hold_out=hold_out, sample=sample, seed=seed, exact=exact, progress=progress)
    for note in material.notes:
        progress.note(note)
    measured_on = machine()
    inputs = {
        "vectors_sha256": material.sha256,
        "qrels_md5": md5_of(qrels) if qrels is not None else None,
        "k": k,
        "recalls": recalls,
        "rounds": rounds,
        "threads": thread_count(),
        "seed": seed,
        "cpu": measured_on["cpu"],
        "versions": measured_on["versions"],
    }
    command = shlex.join(["retr", *sys.argv[1:]])
    from_rows = f"documents held out, at most {hold_out:,}, seed {seed}"
    about = {
        "command": command,
        "machine": measured_on,
        "measured": {
            "source": source.name,
            **source.facts,
            "documents": len(material),
            "dimension": source.dimension,
            "queries": len(material.queries),
            "queries_from": from_rows if source.queries is None else (queries or query_vectors or hdf5 or Path()).name,
            "notes": list(material.notes),
        },
    }
    judgements = None
    if judged is not None and source.documents is not None:
        ids = [source.query_ids[place] for place in material.asked]
        judgements = Judgements(judged, ids, source.documents, material.kept, k)
    labels = PairLabels(labelled, source.index, k, progress) if labelled is not None and source.index else None
    results = Results.open(output, inputs, about, fresh)
    job = Bench(material, Plan(cuts, kinds, k, recalls, rounds), results, progress, labels, judgements)
    with locked(output):
        if hdf5_out is not None:
            export_cut(material, cuts[0], hdf5_out, progress)
        job.run()
        report.write_report(results.content, output, command)
    if as_json:
        for row in report.rows_of(results.content):
            print_json(row)
    else:
        from retrieval.evaluation.tables import as_markdown as markdown
        from retrieval.evaluation.tables import as_table

        sys.stdout.write((markdown if as_markdown else as_table)(report.as_sheet(results.content)))
    progress.note(f"report: {output / 'index.html'}")


def _check_together(
    index_folder: Path | None,
    vectors: Path | None,
    query_vectors: Path | None,
    hdf5: Path | None,
    queries: Path | None,
    qrels: Path | None,
    pairs: str | None,
    sample: int | None,
) -> None:
    """Refuse options that have nothing to work on."""
    sources = {"-i": index_folder, "--vectors": vectors, "--hdf5": hdf5}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other: give one")
    if query_vectors is not None and vectors is None:
        raise UsageError(f"--query-vectors {query_vectors} is for --vectors; an index takes --queries FILE")
    of_index = {"--queries": queries, "--qrels": qrels, "--pairs": pairs}
    for name, value in of_index.items():
        if value is not None and (vectors is not None or hdf5 is not None):
            raise UsageError(f"{name} {value} wants an encoder: it is for an index (-i FOLDER)")
    if qrels is not None and queries is None:
        raise UsageError(f"--qrels {qrels} judges queries: give them with --queries FILE")
    if qrels is not None and sample is not None:
        raise UsageError("--qrels judges all documents: leave --sample out")


def _source(
    index_folder: Path | None,
    vectors: Path | None,
    query_vectors: Path | None,
    hdf5: Path | None,
    queries: Path | None,
    device: str,
    trust_remote_code: bool,
    progress: TerminalProgress,
) -> Source:
    from retrieval.evaluation.bench.hdf5 import hdf5_source
    from retrieval.evaluation.bench.sources import index_source, npy_source

    if vectors is not None:
        return npy_source(vectors.expanduser(), query_vectors.expanduser() if query_vectors else None)
    if hdf5 is not None:
        return hdf5_source(hdf5.expanduser())
    path = index_path(index_folder, progress)
    return index_source(path, queries, device=device, trust_remote_code=trust_remote_code, progress=progress)


def _check_hdf5_out(path: Path, cuts: int) -> None:
    from retrieval.evaluation.bench.hdf5 import check_h5py

    if cuts != 1:
        raise UsageError(f"--hdf5-out writes one cut, and there are {cuts}: name one --transform and one of --dims")
    if not path.parent.is_dir():
        raise UsageError(f"--hdf5-out {path}: there is no folder '{path.parent}'; make it first")
    check_h5py()
