"""Model directories: teaching models, the pinned download, and checks of what lies in one.

Knows the files of a checkpoint (config.json, tokenizer, safetensors), never how an engine computes with them.
"""

from .chat import chat_text
from .directory import check_model_dir, describe_model
from .shapes import PRESETS, ModelShape
from .synthetic import make_model, make_tiny, weight_bytes

__all__ = [
    "PRESETS",
    "ModelShape",
    "chat_text",
    "check_model_dir",
    "describe_model",
    "make_model",
    "make_tiny",
    "weight_bytes",
]
