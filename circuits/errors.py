"""Everything that can be the user's to mend, as one small tree; the command line prints any of these as one line and exits 1.

CircuitsError
├── ModelError     a model that cannot be found, read, trusted or edited
├── PromptError    a prompt, pair, position, answer or metric that does not fit
├── EdgeError      a head or edge that does not exist in this model or prompt
└── FileError      a result or output folder that cannot be read or written
"""


class CircuitsError(Exception):
    """Says in one line what was wrong, what is allowed and what to do."""


class ModelError(CircuitsError):
    """A model cannot be found, read, trusted or edited."""


class PromptError(CircuitsError):
    """A prompt, pair, position, answer or metric does not fit."""


class EdgeError(CircuitsError):
    """A head or an edge does not exist in this model or prompt."""


class FileError(CircuitsError):
    """A result or an output folder cannot be read or written."""
