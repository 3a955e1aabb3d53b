"""The public name of the engine."""

from .engine.llm_engine import LLMEngine


class LLM(LLMEngine):
    """`LLM(model_dir, **config)`; see `Config` for the options and `LLMEngine` for the methods."""
