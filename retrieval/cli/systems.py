"""What `retr eval` measures: the models and indexes that its options name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.cli.output import TerminalProgress
from retrieval.errors import UsageError
from retrieval.transforms.spec import AUTO, parse_transform

if TYPE_CHECKING:
    from retrieval.encoders.base import Encoder
    from retrieval.encoders.catalog import CatalogEntry
    from retrieval.evaluation.evaluate import System
    from retrieval.evaluation.retrieval import Model
    from retrieval.transforms.base import Transform

Loaded = tuple["Encoder", "Transform | None", str]


class Models:
    """What the options say of every model."""

    def __init__(
        self,
        pool: str | None,
        transforms: list[str],
        device: str,
        backend: str,
        precision: str,
        trust_remote_code: bool,
        progress: TerminalProgress,
    ) -> None:
        from retrieval.encoders.load import check_backend

        if AUTO in transforms:
            raise UsageError(
                "--transform auto sees a corpus; to be measured, name one: none, whiten-M, rotate-M, soft-M"
            )
        check_backend(backend, precision, device)
        self._pool, self._specs = pool, [parse_transform(name) for name in transforms]
        self._device, self._backend, self._precision = device, backend, precision
        self._trust, self._progress = trust_remote_code, progress
        self.needs_fit = any(spec is not None for spec in self._specs)

    def system(self, name: str) -> System:
        """A model to be measured on pairs, with the one transform."""
        from retrieval.evaluation.evaluate import System

        load = self._loader(name)
        return System(name, lambda: load(None), self._specs[0])

    def model(self, name: str, document_prompt: str | None) -> Model:
        """A model to be measured by search, with every transform.

        Parameters
        ----------
        document_prompt : None for what the model was made for: that of passages, where documents are no queries.
        """
        from retrieval.encoders import catalog
        from retrieval.evaluation.retrieval import Model

        load, entry = self._loader(name, document_prompt), catalog.lookup(name)
        return Model(name, lambda symmetric: load(_passage_prompt(entry, document_prompt, symmetric)), self._specs)

    def _loader(self, name: str, document_prompt: str | None = None) -> Callable[[str | None], Loaded]:
        """Load a model with a document prompt, or its own; what is wrong with its name is told now."""
        from retrieval.encoders.fusion import parse_fusion
        from retrieval.encoders.load import load_to_build, resolve_settings

        resolve_settings(name, pooling=self._pool, document_prompt=document_prompt)
        self.needs_fit |= any(term.centred for term in parse_fusion(name) or ())

        def load(prompt: str | None) -> Loaded:
            encoder = load_to_build(
                resolve_settings(name, pooling=self._pool, document_prompt=prompt),
                self._device,
                self._backend,
                self._precision,
                self._progress.note,
                trust_remote_code=self._trust,
            )
            return encoder, None, ""

        return load


def index_system(path: Path, device: str, trust_remote_code: bool, progress: TerminalProgress) -> System:
    """An index's own encoder and transform, to be measured on pairs."""
    from retrieval.evaluation.evaluate import System

    return System(str(path), _index_loader(path, device, trust_remote_code, progress))


def index_model(path: Path, device: str, trust_remote_code: bool, progress: TerminalProgress) -> Model:
    """An index's own encoder and transform, to be measured by search over other documents than its own."""
    from retrieval.evaluation.retrieval import Model

    load = _index_loader(path, device, trust_remote_code, progress)
    return Model(str(path), lambda symmetric: load())


def _index_loader(path: Path, device: str, trust_remote_code: bool, progress: TerminalProgress) -> Callable[[], Loaded]:
    from retrieval.index.folder import read_manifest
    from retrieval.search import Index

    folder = path.expanduser()
    read_manifest(folder)

    def load() -> Loaded:
        opened = Index.open(folder, device=device, trust_remote_code=trust_remote_code, progress=progress)
        return opened.encoder, opened.transform, str(opened.manifest.transform["name"])

    return load


def _passage_prompt(entry: CatalogEntry | None, wanted: str | None, symmetric: bool) -> str | None:
    if wanted is not None or symmetric or entry is None:
        return wanted
    return entry.passage_prompt
