"""A request as the service accepts it, and every way it can be refused before the engine hears of it.

RefusedRequest
├── InvalidRequest     the request can never run: HTTP 400
├── DuplicateRequest   its id belongs to a request that is still open: HTTP 409
├── QueueFull          no place in the bounded queue: HTTP 429
└── NotServing         starting, draining or dead: HTTP 503
"""

from __future__ import annotations

from dataclasses import dataclass

from nanolab.serving.engine import EngineFacts, SamplingSpec

__all__ = [
    "DuplicateRequest",
    "GenerationRequest",
    "InvalidRequest",
    "NotServing",
    "QueueFull",
    "RefusedRequest",
    "check_request",
]

COLDEST = 1e-5  # logits / T must stay finite in float32


class RefusedRequest(Exception):
    """The request was not accepted; nothing that was accepted earlier is affected."""


class InvalidRequest(RefusedRequest):
    """`param` names the field that is wrong."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class DuplicateRequest(RefusedRequest):
    """The id is in use by an open request; it is free again once that one has finished."""


class QueueFull(RefusedRequest):
    """Every place in the queue is taken; trying again later can help."""


class NotServing(RefusedRequest):
    """The worker is not taking requests: it starts, drains or has failed."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Token ids in, token ids out; text is the business of whoever has a tokenizer."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingSpec
    request_class: str | None = None  # "short" or "long", carried through for the report


MAX_ID_LENGTH = 200


def check_request(request: GenerationRequest, facts: EngineFacts) -> None:
    """Raise InvalidRequest, with the numbers, for what the engine would refuse. Runs on the caller's thread."""
    if not 0 < len(request.request_id) <= MAX_ID_LENGTH:
        raise InvalidRequest(
            f"request_id has {len(request.request_id)} characters; 1 to {MAX_ID_LENGTH} are allowed", "request_id"
        )
    _check_prompt(request, facts)
    _check_sampling(request.sampling, facts)


def _check_prompt(request: GenerationRequest, facts: EngineFacts) -> None:
    prompt, max_tokens = request.prompt_token_ids, request.sampling.max_tokens
    if not prompt:
        raise InvalidRequest("the prompt is empty; give at least one token", "prompt")
    if len(prompt) + max_tokens > facts.max_model_len:
        raise InvalidRequest(
            f"{len(prompt)} prompt tokens + max_tokens {max_tokens} = {len(prompt) + max_tokens}, more than the "
            f"context of {facts.max_model_len}; shorten the prompt or lower max_tokens",
            "max_tokens",
        )
    if min(prompt) < 0 or max(prompt) >= facts.vocab_size:
        wrong = next(token for token in prompt if not 0 <= token < facts.vocab_size)
        raise InvalidRequest(f"token id {wrong} is outside the vocabulary [0, {facts.vocab_size})", "prompt")
    pool = facts.num_blocks * facts.block_size
    if len(prompt) > pool:
        raise InvalidRequest(f"{len(prompt)} prompt tokens can never fit the KV pool of {pool}", "prompt")


def _check_sampling(sampling: SamplingSpec, facts: EngineFacts) -> None:
    if sampling.max_tokens < 1:
        raise InvalidRequest(f"max_tokens is {sampling.max_tokens}; it must be at least 1", "max_tokens")
    if sampling.temperature != 0 and not COLDEST <= sampling.temperature <= 100:  # nan is not either
        least = f"it must be 0, which is greedy, or from {COLDEST:g} to 100"
        raise InvalidRequest(f"temperature is {sampling.temperature}; {least}", "temperature")
    if not 0 < sampling.top_p <= 1:
        raise InvalidRequest(f"top_p is {sampling.top_p}; it must be in (0, 1]", "top_p")
    if not 0 <= sampling.top_k <= facts.vocab_size:
        raise InvalidRequest(f"top_k is {sampling.top_k}; it must be in [0, {facts.vocab_size}]", "top_k")
    if sampling.seed is not None and not 0 <= sampling.seed < 2**63:
        raise InvalidRequest(f"seed is {sampling.seed}; it must be in [0, 2^63)", "seed")
    if len(sampling.stop_token_ids) > 64:
        raise InvalidRequest(f"{len(sampling.stop_token_ids)} stop_token_ids; at most 64 are allowed", "stop_token_ids")
