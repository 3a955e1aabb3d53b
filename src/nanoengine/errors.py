"""Every error the engine raises on purpose, in one tree.

EngineError
├── ConfigError    an option or a combination of options that cannot work (also a ValueError)
├── ModelError     a model directory that is missing, damaged or of another architecture
├── RequestError   a request refused before anything was computed for it (also a ValueError)
└── RankError      a rank of a tensor-parallel engine died or did not answer in time

Each message names the value, the limit and the next thing to try.
"""


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class ConfigError(EngineError, ValueError):
    """An engine option, or a combination of them, that cannot work."""


class ModelError(EngineError):
    """A model directory that is missing, damaged, or holds another architecture."""


class RequestError(EngineError, ValueError):
    """A request refused by `add_request`; no other request is affected."""


class RankError(EngineError):
    """A rank of a tensor-parallel engine died or did not answer in time."""
