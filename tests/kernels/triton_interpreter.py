"""Triton's interpreter on CPU, made exact in bfloat16 and usable with NumPy 2.4.

NumPy has no bfloat16, so triton 3.6's interpreter keeps such values as 16-bit integers, multiplies those integers in
`tl.dot`, and loses a carry when rounding. And it turns one-element arrays into loop bounds with int(), which NumPy
2.4 refuses. Three functions are replaced; each gives what the GPU gives.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch


def widen(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits -> float32 values."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray) -> np.ndarray:
    """float32 values -> bfloat16 bits, rounded to nearest even by torch."""
    rounded = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy().view(np.uint16).reshape(values.shape)


def enable() -> None:
    """Switch triton to its interpreter; must run before any module with a kernel is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language as tl
    from triton.runtime import interpreter

    original_convert = interpreter._convert_float
    builder = interpreter.InterpreterBuilder
    original_dot = builder.create_dot

    def convert(data: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
        if source == tl.bfloat16 and target == tl.float32:
            return widen(data.view(np.uint16)).view(np.uint32)
        if source == tl.float32 and target == tl.bfloat16:
            return narrow(data.view(np.float32))
        return original_convert(data, source, target, rounding)

    def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a = interpreter.TensorHandle(widen(a.data), tl.float32)
            b = interpreter.TensorHandle(widen(b.data), tl.float32)
        return original_dot(self, a, b, d, precision, imprecise)

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_and_index
    interpreter._convert_float = convert
    builder.create_dot = dot
