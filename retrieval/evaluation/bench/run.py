"""Every combination built, tuned, searched and timed; what cannot be is a result with its reason."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.errors import RetrError, TransformError, UsageError
from retrieval.evaluation.bench.grid import Cut
from retrieval.evaluation.bench.labels import Judgements, PairLabels
from retrieval.evaluation.bench.material import Material
from retrieval.evaluation.bench.recall import Truth
from retrieval.evaluation.bench.results import Results
from retrieval.evaluation.bench.timing import Search, allocated_bytes, measure_times
from retrieval.index.building import build_vectors
from retrieval.index.rescored import RescoredIndex
from retrieval.index.spec import KINDS, Setting, is_rescored
from retrieval.index.tuning import Point, pick
from retrieval.index.vectors import VectorIndex
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform
from retrieval.types import Progress

UNCUT, FLAT = "uncut", "flat"
MEASURED, FAILED = "measured", "failed"
KILLED = "the process was killed twice at this one, by want of memory most likely (--fresh tries again)"


@dataclass(frozen=True)
class Plan:
    """What is measured, and how."""

    cuts: Sequence[Cut]
    kinds: Sequence[str]
    k: int
    recalls: Sequence[float]
    """What searches are set to reach of the 10 exact neighbours in the cut vectors."""
    rounds: int


@dataclass
class _Built:
    kind: str
    factory: str
    curve: Sequence[Point]
    index: VectorIndex
    transform: Transform | None
    seconds: float
    file_bytes: int
    memory_bytes: int | None

    def search(self, setting: Setting, k: int) -> Search:
        """From raw vectors on: a cut pays for its transform."""
        return lambda queries: self.index.search(unit_vectors(queries, self.transform), k, setting=setting)


@dataclass(frozen=True)
class _Point:
    """One setting of one index."""

    built: _Built
    setting: Setting
    targets: tuple[float, ...] = ()
    tuned_recall: float | None = None


class _Stages:
    """Progress without the notes of a build, which are about its own choice of a setting."""

    def __init__(self, progress: Progress) -> None:
        self.stage = progress.stage

    def note(self, message: str) -> None:
        pass


class Bench:
    """One run over a plan; what `results` holds already is not measured again.

    Parameters
    ----------
    labels, judgements : where there are such.
    """

    def __init__(
        self,
        material: Material,
        plan: Plan,
        results: Results,
        progress: Progress,
        labels: PairLabels | None = None,
        judgements: Judgements | None = None,
    ) -> None:
        if plan.k > len(material):
            raise UsageError(f"k is {plan.k}, and there are {len(material):,} documents: expected no more than those")
        self.material, self.plan, self.results, self.progress = material, plan, results, progress
        self.labels, self.judgements = labels, judgements
        self._transforms: dict[Cut, Transform] = {}

    def run(self) -> None:
        """Measure what is not there yet. Raises KeyboardInterrupt, and the like, with all finished units kept."""
        groups = [
            (cut, [kind for kind in self.plan.kinds if not self.results.has(str(cut), kind)]) for cut in self.plan.cuts
        ]
        groups = [(cut, kinds) for cut, kinds in groups if kinds]
        self._measure_labels(UNCUT, None)
        if not groups and self.results.has(UNCUT, FLAT):
            self._measure_cut_labels()
            return
        with tempfile.TemporaryDirectory(prefix=".bench.", dir=self.results.folder) as work:
            self._work = Path(work)
            self.progress.note("exact search on the uncut vectors")
            try:
                self._exact = self._build(FLAT, None)
            except MemoryError:
                size = len(self.material) * self.material.source.dimension * 4 / 2**30
                raise RetrError(
                    f"no memory for exact search on the uncut vectors ({size:.1f} GiB), which all others are "
                    f"compared with: take a part of them with --sample N"
                ) from None
            self._truth = Truth.find(self._exact.index, unit_vectors(self.material.queries, None), self.plan.k)
            if not self.results.has(UNCUT, FLAT):
                head = {"cut": UNCUT, "transform": "none", "m": self.material.source.dimension, **self._given()}
                self._measure(head, [_Point(self._exact, Setting())], self._truth)
            for number, (cut, kinds) in enumerate(groups, 1):
                self.progress.note(f"{cut}, {number} of {len(groups)}: {', '.join(kinds)}")
                self._group(cut, kinds)
        self._measure_cut_labels()

    def _given(self) -> dict[str, Any]:
        """How many of the nearest the source's own list holds, where it has one and all its rows are documents."""
        neighbors = self.material.source.neighbors
        if neighbors is None or len(self.material) < self.material.source.rows:
            return {}
        return {"recall_of_given_neighbors": float(self._truth.recall(neighbors[self.material.asked]).mean())}

    def _fitted(self, cut: Cut) -> Transform:
        """Fitted once. Raises TransformError where the vectors do not carry so many dimensions."""
        if cut not in self._transforms:
            self._transforms[cut] = cut.fit(self.material.moments)
        return self._transforms[cut]

    def _group(self, cut: Cut, kinds: Sequence[str]) -> None:
        head = {"cut": str(cut), "transform": cut.transform, "m": cut.m}
        try:
            transform = self._fitted(cut)
            flat = self._build(FLAT, transform)
        except (TransformError, MemoryError) as error:
            for kind in kinds:
                self._fail(head, kind, _reason(error))
            return
        truth = Truth.find(flat.index, unit_vectors(self.material.queries, transform), self.plan.k)
        points: list[_Point] = []
        for kind in kinds:
            unit = f"{cut} {kind}"
            if not self.results.begin(unit):
                self._fail(head, kind, KILLED)
                continue
            try:
                built = flat if kind == FLAT else self._build(kind, transform)
                points += self._points(built)
            except (RetrError, MemoryError, RuntimeError) as error:
                self._fail(head, kind, _reason(error))
            finally:
                self.results.end(unit)
        if points:
            self._measure(head, points, truth)

    def _build(self, kind: str, transform: Transform | None) -> _Built:
        rows = len(self.material)
        if kind in KINDS and rows < KINDS[kind].least_rows:
            raise UsageError(f"{kind} learns from at least {KINDS[kind].least_rows:,} vectors, there are {rows:,}")
        dimension = self.material.source.dimension if transform is None else transform.m
        start = time.perf_counter()
        chunks = self.material.unit_chunks(transform)
        take = self.material.unit_rows(transform)
        made = build_vectors(
            chunks, rows, dimension, kind, take=take, numbered=self.material.numbered, progress=_Stages(self.progress)
        )
        seconds = time.perf_counter() - start
        if made.spec != kind:
            raise UsageError(f"{kind} cannot be trained on {rows:,} vectors")
        path = self._work / "vectors.faiss"
        made.vectors.save(path)
        factory, curve, setting = made.factory, made.curve, made.vectors.setting
        del made
        before = allocated_bytes()
        index = VectorIndex.load(path, mmap=False)
        if is_rescored(kind):
            index = RescoredIndex(index, take)
            index.setting = setting
        after = allocated_bytes()
        size = path.stat().st_size
        path.unlink()
        grown = max(0, after - before) if before is not None and after is not None else None
        return _Built(kind, factory, curve, index, transform, seconds, size, grown)

    def _points(self, built: _Built) -> list[_Point]:
        """A point a setting; several recalls may be reached by one."""
        usual = built.index.setting
        if usual == Setting() or not built.curve:
            return [_Point(built, usual)]
        chosen: dict[Setting, _Point] = {}
        for target in self.plan.recalls:
            found, _ = pick(built.curve, target)
            before = chosen[found.setting].targets if found.setting in chosen else ()
            chosen[found.setting] = _Point(built, found.setting, (*before, target), found.recall)
        return list(chosen.values())

    def _measure(self, head: dict[str, Any], points: Sequence[_Point], truth: Truth) -> None:
        """Search and time, the exact search in turn with the others, and keep the rows."""
        k, material = self.plan.k, self.material
        names = [UNCUT if point.built is self._exact else str(number) for number, point in enumerate(points)]
        searches = {name: point.built.search(point.setting, k) for name, point in zip(names, points, strict=True)}
        searches[UNCUT] = self._exact.search(Setting(), k)
        times = measure_times(searches, UNCUT, material.queries, self.plan.rounds, self.progress)
        for name, point in zip(names, points, strict=True):
            built = point.built
            scores, rows = built.index.search(unit_vectors(material.queries, built.transform), k, setting=point.setting)
            self.results.rows.append(
                {
                    **head,
                    "index": built.kind,
                    "status": MEASURED,
                    "factory": built.factory,
                    "setting": point.setting.to_json(),
                    "targets": list(point.targets),
                    "tuned_recall": point.tuned_recall,
                    "recall_of_uncut": float(self._truth.recall(rows).mean()),
                    "recall_of_cut": float(truth.recall(rows).mean()),
                    **times[name],
                    "build_seconds": built.seconds,
                    "file_bytes": built.file_bytes,
                    "bytes_per_document": built.file_bytes / len(material),
                    "memory_bytes": built.memory_bytes,
                    "judged": dict(self.judgements.measure(scores, rows)) if self.judgements else {},
                }
            )
        self.results.save()

    def _fail(self, head: dict[str, Any], kind: str, reason: str) -> None:
        self.progress.note(f"{head['cut']} {kind}: {reason}")
        self.results.rows.append({**head, "index": kind, "status": FAILED, "reason": reason})
        self.results.save()

    def _measure_cut_labels(self) -> None:
        for cut in self.plan.cuts if self.labels else ():
            try:
                transform = self._fitted(cut)
            except TransformError:  # its rows say so
                continue
            self._measure_labels(str(cut), transform)

    def _measure_labels(self, cut: str, transform: Transform | None) -> None:
        known = self.results.content["labels"].get(cut, {})
        if self.labels is None or known.get("md5") == self.labels.pairs.md5:
            return
        self.progress.note(f"{cut}: {self.labels.pairs.title}")
        about = {"pairs": self.labels.pairs.title, "md5": self.labels.pairs.md5, "count": len(self.labels.pairs)}
        self.results.content["labels"][cut] = {**about, **self.labels.measure(transform)}
        self.results.save()


def _reason(error: Exception) -> str:
    """In one line."""
    return str(error).splitlines()[0] if str(error) and not isinstance(error, MemoryError) else "out of memory"
