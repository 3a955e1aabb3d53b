"""How one request chooses its tokens and when it stops."""

import math
from dataclasses import dataclass

from .errors import RequestError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options of one request.

    temperature   0 is greedy; otherwise logits are divided by it before the draw
    top_k, top_p  keep the k most likely tokens (0: all), then the smallest set whose probability reaches p
    seed          the same seed, prompt and weights give the same tokens, whatever else runs beside
    max_tokens    output tokens at most
    ignore_eos    go on past the model's end-of-sequence ids (stop_token_ids still stop)
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int = 64
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RequestError(f"temperature is {self.temperature}; it must be a finite number >= 0 (0 is greedy)")
        if self.top_k < 0:
            raise RequestError(f"top_k is {self.top_k}; it must be >= 0 (0 keeps every token)")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}; it must be in (0, 1] (1 keeps every token)")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; a request must ask for at least 1 token")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
