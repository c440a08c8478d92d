"""The encoder that an index's manifest names, loaded and checked."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.encoders.base import Encoder, EncoderSettings
from retrieval.encoders.load import load_encoder
from retrieval.encoders.runtime import RUNTIMES, import_runtime
from retrieval.errors import EncoderError
from retrieval.index import folder as layout
from retrieval.types import NoProgress, Progress


@dataclass
class StoredEncoder:
    """Loads the encoder of an index; in a thread, where it is started before it is asked.

    Parameters
    ----------
    folder : the index.
    device : auto, cpu or cuda.
    trust_remote_code : whether Python code that the model brings along may be run.
    """

    folder: Path
    manifest: layout.Manifest
    device: str = "auto"
    trust_remote_code: bool = False
    progress: Progress = field(default_factory=NoProgress)
    _started: Future[Encoder] | None = None

    def start(self) -> None:
        """Begin to load a graph. torch is left until it is asked for: its import cannot be broken off."""
        if self.manifest.encoder["backend"] not in RUNTIMES:
            return
        import_runtime(self.manifest.encoder["backend"])  # two threads that import wait for each other
        executor = ThreadPoolExecutor(1)
        self._started = executor.submit(self._load)
        executor.shutdown(wait=False)

    def load(self) -> Encoder:
        """The encoder, waited for where it is on its way.

        Raises
        ------
        EncoderError
            It cannot be loaded, or is another one now.
        """
        return self._load() if self._started is None else self._started.result()

    def _load(self) -> Encoder:
        stored = self.manifest.encoder
        settings = {name: value for name, value in stored.items() if name in EncoderSettings.__dataclass_fields__}
        state = self.folder / layout.ENCODER
        encoder = load_encoder(
            EncoderSettings(**settings),
            self.device,
            self.progress.note,
            state if state.exists() else None,
            backend=stored["backend"],
            precision=stored["precision"],
            trust_remote_code=self.trust_remote_code,
        )
        return check_encoder(encoder, stored, self.folder)


def check_encoder(encoder: Encoder, stored: Mapping[str, Any], index: Path) -> Encoder:
    """The encoder itself; EncoderError where it is not the one that built the index."""
    expected = stored.get("fingerprint")
    if encoder.fingerprint != expected:
        raise EncoderError(
            f"index '{index}' was built by another encoder than {encoder.settings.source!r} is now "
            f"(fingerprint {str(expected)[:12]}, now {encoder.fingerprint[:12]}): its files, pooling, prompts or "
            f"length changed; restore the model, or build the index again"
        )
    return encoder
