"""What can go wrong, as a tree.

RetrError
├── UsageError            the call itself is wrong (the command line exits with 2)
├── CorpusError           a corpus cannot be read
├── EncoderError          a model cannot be loaded or used
├── TransformError        a transform cannot be fitted or applied
│   └── DimensionError    vectors of one dimension where another is needed
├── IndexFolderError      an index folder cannot be read or written
├── BuildError            a build cannot go on
└── TrainingError         a training run cannot go on
"""


class RetrError(Exception):
    """Base of every error that this package raises on purpose."""


class UsageError(RetrError, ValueError):
    """An argument is wrong; nothing was started."""


class CorpusError(RetrError):
    """A corpus file is missing, unreadable or malformed."""


class EncoderError(RetrError):
    """A model is missing, incomplete or not the one that is needed."""


class TransformError(RetrError):
    """The rows do not carry the transform that is asked for."""


class DimensionError(TransformError):
    """Vectors of one dimension were given where another is needed."""


class IndexFolderError(RetrError):
    """An index folder is missing, damaged or of another format version."""


class BuildError(RetrError):
    """A build cannot go on; what was finished is kept."""


class TrainingError(RetrError):
    """A training run cannot go on; what was good is kept."""
