"""nanoengine: a small, fast LLM inference engine that is meant to be read.

Token ids in, token ids out: it loads a Qwen3-family dense model from a directory, keeps keys and values in a
paged cache, and runs many requests together, one scheduling step at a time. Nothing here knows about HTTP,
evidence or the manual. Only relative imports, so the same package runs from any directory it is copied to.
"""

from .errors import ConfigError, EngineError, ModelError, RequestError
from .llm import LLM
from .sampling_params import SamplingParams

__all__ = ["LLM", "ConfigError", "EngineError", "ModelError", "RequestError", "SamplingParams"]
