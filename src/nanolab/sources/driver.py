"""One interface over a live engine, whichever package it comes from.

The driver never changes what an engine does: it calls its public methods and looks at its queues. What nanoengine
offers and upstream lacks (abort, greedy, refusing bad requests, closing twice) is supplied here for upstream.
"""

from __future__ import annotations

import atexit
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from nanolab.errors import LabError

if TYPE_CHECKING:
    from .engine_source import EngineSource

# Upstream refuses temperature 0; dividing logits by this leaves the largest one alone.
UPSTREAM_GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How a request chooses its tokens and when it stops; the same for every engine."""

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()


class SeqState(NamedTuple):
    """One sequence of a step's batch before the model runs: total / cached / scheduled tokens and owned blocks."""

    seq_id: int
    total: int
    cached: int
    scheduled: int
    blocks: tuple[int, ...]

    @classmethod
    def of(cls, seq: Any) -> SeqState:
        return cls(seq.seq_id, seq.num_tokens, seq.num_cached_tokens, seq.num_scheduled_tokens, tuple(seq.block_table))


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one `step()` did; a middle prefill chunk is in `batch` and has nothing in `accepted`."""

    phase: Literal["prefill", "decode"]
    batch: tuple[SeqState, ...]
    accepted: list[tuple[Any, int]]
    finished: list[Any]
    num_tokens: int


class EngineDriver:
    def __init__(self, engine: Any, source: EngineSource) -> None:
        self.engine = engine
        self.source = source
        self._upstream = source.kind == "upstream"
        self._live: dict[int, Any] = {}
        self._cancelled: set[int] = set()
        self._last_batch: tuple[list[Any], bool] = ([], False)
        self._closed = False
        self._schedule = engine.scheduler.schedule
        engine.scheduler.schedule = self._observed_schedule

    # ---- facts -------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Any:
        return self.engine.tokenizer

    @property
    def _config(self) -> Any:
        return self.engine.model_runner.config if self._upstream else self.engine.config

    @property
    def vocab_size(self) -> int:
        return int(self._config.hf_config.vocab_size)

    @property
    def max_model_len(self) -> int:
        return int(self._config.max_model_len)

    @property
    def max_num_seqs(self) -> int:
        return int(self._config.max_num_seqs)

    @property
    def block_size(self) -> int:
        return int(self._config.kvcache_block_size)

    @property
    def num_blocks(self) -> int:
        return len(self.engine.scheduler.block_manager.blocks)

    @property
    def free_blocks(self) -> int:
        return len(self.engine.scheduler.block_manager.free_block_ids)

    @property
    def device(self) -> str:
        return "cuda" if self._upstream else str(self._config.device)

    @property
    def dtype(self) -> str:
        hf_dtype = getattr(self._config.hf_config, "dtype", None)
        return str(hf_dtype).removeprefix("torch.") if self._upstream else str(self._config.dtype)

    @property
    def execution(self) -> str:
        """`graph` where decode steps replay captured graphs, else `eager`: the live engine's answer."""
        return "eager" if self.device == "cpu" or self._config.enforce_eager else "graph"

    @property
    def attention_backend(self) -> str:
        return "flash_attn" if self._upstream else str(self.engine.model_runner.attention.name)

    @property
    def attention_reason(self) -> str:
        return "the only one upstream has" if self._upstream else str(self.engine.model_runner.attention.reason)

    @property
    def waiting(self) -> list[Any]:
        return list(self.engine.scheduler.waiting)

    @property
    def running(self) -> list[Any]:
        return list(self.engine.scheduler.running)

    def describe(self) -> dict[str, Any]:
        """What a script announces and a block's `config` holds about the live engine."""
        names = ("device", "dtype", "attention_backend", "max_model_len", "max_num_seqs", "block_size", "num_blocks")
        return {name: getattr(self, name) for name in names} | {
            "max_num_batched_tokens": self._config.max_num_batched_tokens,
            "enforce_eager": bool(self._config.enforce_eager),
            "tensor_parallel_size": self._config.tensor_parallel_size,
        }

    # ---- requests ----------------------------------------------------------------------------------------

    def add(self, prompt: str | list[int], params: SamplingSpec) -> Any:
        """Queue one request and return the engine's own sequence object; ValueError says why it is refused."""
        if self._upstream:
            prompt = self._check_for_upstream(prompt, params)
        self.engine.add_request(prompt, self._sampling_params(params))
        seq = self.engine.scheduler.waiting[-1]
        self._live[seq.seq_id] = seq
        return seq

    def _sampling_params(self, spec: SamplingSpec) -> Any:
        params_class = self.source.module("sampling_params").SamplingParams
        if not self._upstream:
            fields = spec.__dataclass_fields__
            return params_class(**{name: getattr(spec, name) for name in fields})
        if spec.top_k or spec.top_p < 1 or spec.seed is not None or spec.stop_token_ids:
            raise LabError("upstream nano-vLLM samples by temperature only; drop top_k, top_p, seed and stop_token_ids")
        temperature = spec.temperature or UPSTREAM_GREEDY_TEMPERATURE
        return params_class(temperature=temperature, max_tokens=spec.max_tokens, ignore_eos=spec.ignore_eos)

    def _check_for_upstream(self, prompt: str | list[int], params: SamplingSpec) -> list[int]:
        """The refusals that nanoengine makes itself and upstream does not."""
        token_ids: list[int] = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not token_ids:
            raise ValueError("the prompt is empty; give at least 1 token")
        if outside := [token for token in token_ids if not 0 <= token < self.vocab_size]:
            raise ValueError(f"token id {outside[0]} is outside the vocabulary of {self.vocab_size} ids")
        if params.max_tokens < 1 or len(token_ids) + params.max_tokens > self.max_model_len:
            raise ValueError(
                f"prompt of {len(token_ids)} tokens + max_tokens {params.max_tokens} must not exceed max_model_len "
                f"{self.max_model_len}, and max_tokens must be at least 1"
            )
        return token_ids

    def abort(self, seq: Any) -> bool:
        """End a request between two steps and release its blocks; False if it is already over."""
        if self._live.pop(seq.seq_id, None) is None:
            return False
        if not self._upstream:
            return bool(self.engine.abort(seq.seq_id))
        scheduler = self.engine.scheduler
        (scheduler.running if seq in scheduler.running else scheduler.waiting).remove(seq)
        scheduler.block_manager.deallocate(seq)
        self._cancelled.add(seq.seq_id)
        return True

    def finish_reason(self, seq: Any) -> str | None:
        """length | eos | stop | kv_exhausted | cancelled, or None while the request is unfinished."""
        if not self._upstream:
            reason: str | None = seq.finish_reason
            return reason
        if seq.seq_id in self._cancelled:
            return "cancelled"
        if not seq.is_finished:
            return None
        at_eos = not seq.ignore_eos and seq.last_token == self.tokenizer.eos_token_id
        return "eos" if at_eos else "length"

    # ---- steps -------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        return not self.engine.is_finished()

    def _observed_schedule(self) -> tuple[list[Any], bool]:
        seqs, is_prefill = self._last_batch = self._schedule()
        self._batch_before = tuple(SeqState.of(seq) for seq in seqs)
        self._outputs_before = [seq.num_completion_tokens for seq in seqs]
        return seqs, is_prefill

    def step(self) -> StepRecord:
        """Call the engine's own `step()` and say what it did."""
        outputs, num_tokens = self.engine.step()
        seqs, is_prefill = self._last_batch
        accepted = [
            (seq, seq.last_token)
            for seq, before in zip(seqs, self._outputs_before, strict=True)
            if seq.num_completion_tokens > before
        ]
        finished = [self._live.pop(seq_id) for seq_id, _ in outputs]
        phase: Literal["prefill", "decode"] = "prefill" if is_prefill else "decode"
        return StepRecord(phase, self._batch_before, accepted, finished, num_tokens)

    def check(self) -> None:
        """Between steps: an error if the process of another rank has ended, which the next step would wait for."""
        processes = self.engine.ps if self._upstream else self.engine.processes
        for rank, process in enumerate(processes, 1):
            if not process.is_alive():
                raise ChildProcessError(
                    f"rank {rank} ended with exit code {process.exitcode} between two steps; start the engine again"
                )

    def close(self) -> None:
        """Stop the engine and release its device; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._upstream:
            atexit.unregister(self.engine.exit)
        self.engine.exit()

    def __enter__(self) -> EngineDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
