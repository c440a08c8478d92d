"""An encoder and a transform as a model of the package mteb, and results in the form of mteb's own files.

Source: Muennighoff et al. 2023, arXiv:2210.07316; the encoder protocol and the file are those of mteb 2.26.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.base import Encoder, TextKind
from retrieval.errors import EncoderError, IndexFolderError, UsageError
from retrieval.evaluation.datasets import DATASETS
from retrieval.evaluation.hub import HUB_SETS, cached_files
from retrieval.evaluation.pairs import Pairs, md5_of
from retrieval.storage import atomic_file
from retrieval.transforms.apply import unit_vectors
from retrieval.transforms.base import Transform

if TYPE_CHECKING:
    from retrieval.evaluation.evaluate import Result

_SPLITS = {"train": "train", "dev": "validation", "test": "test"}


class MtebEncoder:
    """What `mteb.evaluate(MtebEncoder.of_index("indexes/faq"), tasks)` runs: mteb's encoder protocol.

    Parameters
    ----------
    encoder : texts that mteb calls queries get its query prompt, all others its document prompt.
    transform : fitted; None leaves the embeddings as they are but for their length.
    name : what mteb calls the model; a name without an organisation gets `retr/`.
    """

    def __init__(self, encoder: Encoder, transform: Transform | None = None, name: str = "") -> None:
        self.encoder, self.transform = encoder, transform
        name = name or _slug(encoder.settings.source)
        self._name = name if "/" in name else f"retr/{name}"

    @classmethod
    def of_index(cls, path: str | Path, **options: Any) -> MtebEncoder:
        """The encoder and the transform of an index folder; `options` are those of `Index.open`."""
        from retrieval.search import Index

        opened = Index.open(path, **options)
        return cls(opened.encoder, opened.transform, f"{_slug(str(path))}-{opened.manifest.transform['name']}")

    @classmethod
    def of_model(cls, model: str | Path, pooling: str | None = None, transform: Path | None = None) -> MtebEncoder:
        """A model as `retr index --model` takes it, with the transform of a file, in the fastest backend."""
        from retrieval.encoders.load import load_to_build, resolve_settings
        from retrieval.transforms.apply import load_transform

        encoder = load_to_build(resolve_settings(model, pooling=pooling), "auto", "auto", "auto")
        return cls(encoder, load_transform(transform) if transform is not None else None)

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: object = None, **options: Any
    ) -> NDArray[np.float32]:
        """Unit vectors, float32, shape (n, m).

        Parameters
        ----------
        inputs : batches, each with its texts under `text`.
        prompt_type : mteb's PromptType, `query` or `document`, or None; its value counts.
        options : what mteb says of task, split and batch size, which change no vector.
        """
        texts = [str(text) for batch in inputs for text in batch["text"]]
        kind: TextKind = "query" if getattr(prompt_type, "value", prompt_type) == "query" else "document"
        distinct = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        vectors = unit_vectors(self.encoder.encode(list(distinct), kind=kind), self.transform)
        return vectors[[distinct[text] for text in texts]]

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The cosine of each with each: float tensor, shape (n, m), as mteb expects it."""
        one, other = _tensor(embeddings1), _tensor(embeddings2)
        return one @ other.T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The cosines of pairs: float tensor, shape (n,)."""
        return (_tensor(embeddings1) * _tensor(embeddings2)).sum(dim=-1)

    @property
    def mteb_model_meta(self) -> Any:
        """mteb's ModelMeta: name, revision (the encoder's fingerprint), dimensions.

        Raises
        ------
        EncoderError
            mteb is not installed.
        """
        try:
            from mteb.models.model_meta import ModelMeta, ScoringFunction
        except ImportError as error:
            raise EncoderError(f"the package mteb is not installed ({error}): pip install 'retr[mteb]'") from error
        settings = self.encoder.settings
        return ModelMeta.create_empty(
            {
                "name": self._name,
                "revision": self.encoder.fingerprint[:12],
                "embed_dim": self.encoder.dimension if self.transform is None else self.transform.m,
                "max_tokens": settings.max_length or None,
                "similarity_fn_name": ScoringFunction.COSINE,
                "use_instructions": bool(settings.query_prompt or settings.document_prompt),
            }
        )


def write_mteb_results(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write each result as mteb writes a task's: FOLDER/LCQMC.json; with several systems, FOLDER/SYSTEM/LCQMC.json.

    The scores are fractions. `dataset_revision` is that of the hub's set where the pairs are the same, else
    `md5:` and the file's md5; `mteb_version` is the installed package's, or null.

    Raises
    ------
    UsageError
        The pairs are a file of the user's, which is no task of mteb.
    """
    check_tasks([result.task.pairs for result in results])
    several = len({_system(result) for result in results}) > 1
    written = []
    for result in results:
        target = folder / _system(result) if several else folder
        target.mkdir(parents=True, exist_ok=True)
        path = target / f"{HUB_SETS[result.task.pairs.name].task}.json"
        with atomic_file(path) as file:
            file.write((json.dumps(mteb_json(result), indent=2) + "\n").encode("utf-8"))
        written.append(path)
    return written


def check_tasks(pairs: Sequence[Pairs]) -> None:
    """UsageError where pairs are of no set that mteb has a task for."""
    for each in pairs:
        if each.name not in DATASETS or not each.split:
            raise UsageError(
                f"--mteb is for the sets {', '.join(HUB_SETS)}: {each.name} is a file, and no task of mteb"
            )


def check_folder(folder: Path) -> None:
    """IndexFolderError where something else than a folder stands there."""
    if folder.exists() and not folder.is_dir():
        raise IndexFolderError(f"'{folder}' is a file, expected a folder or a new name for --mteb")


def mteb_json(result: Result) -> dict[str, Any]:
    """mteb's TaskResult of a result."""
    pairs, place = result.task.pairs, HUB_SETS[result.task.pairs.name]
    values = {name: result.measures.values[name].value for name in ("pearson", "spearman")}
    scores = {
        **values,
        **{f"cosine_{name}": value for name, value in values.items()},
        **result.distance_correlations,
    }
    version = _mteb_version()
    return {
        "dataset_revision": _revision(pairs),
        "task_name": place.task,
        "mteb_version": version,
        "scores": {
            _SPLITS[pairs.split]: [
                {
                    **{name: None if value is None else round(value, 6) for name, value in scores.items()},
                    "main_score": None if values["spearman"] is None else round(values["spearman"], 6),
                    "hf_subset": "default",
                    "languages": [place.language],
                    "mteb_version": version,
                }
            ]
        },
        "evaluation_time": result.seconds,
        "kg_co2_emissions": None,
        "date": datetime.now(UTC).timestamp(),
        "evaluation_phases": None,
    }


def _revision(pairs: Pairs) -> str:
    place = HUB_SETS[pairs.name]
    cached = cached_files(pairs.name, pairs.split)
    same = pairs.md5 in place.same or (bool(cached) and md5_of(*cached) == pairs.md5)
    return place.revision if same else f"md5:{pairs.md5}"


def _system(result: Result) -> str:
    system = result.system
    return _slug(f"{system['name']}-{system['pooling']}-{system['transform']}")


def _slug(text: str) -> str:
    """A name that can be a folder's: of a path its last part."""
    return re.sub(r"[^\w.+-]+", "-", Path(text).name).strip("-.") or "model"


def _tensor(embeddings: Any) -> Any:
    import torch

    tensor = torch.as_tensor(embeddings, dtype=torch.float32)
    return torch.nn.functional.normalize(tensor if tensor.ndim > 1 else tensor.unsqueeze(0), dim=-1)


def _mteb_version() -> str | None:
    try:
        return importlib.metadata.version("mteb")
    except importlib.metadata.PackageNotFoundError:
        return None
