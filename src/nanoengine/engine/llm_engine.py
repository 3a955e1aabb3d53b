"""The engine as its users see it: add requests, step, collect finished outputs.

`step()` is the whole cycle: schedule a batch, run it, account for it. Nothing happens between steps, so a caller may
add or abort requests there.
"""

import atexit
import gc
import json
import os
from collections.abc import Iterator
from itertools import count
from operator import index
from time import perf_counter
from typing import Any

import torch
import torch.multiprocessing as mp
from tqdm.auto import tqdm
from transformers import AutoTokenizer

from ..config import Config
from ..errors import RequestError
from ..sampling_params import SamplingParams
from .model_runner import ModelRunner, owning, run_rank
from .run_ahead import decode_ahead
from .scheduler import Scheduler
from .sequence import Sequence

Prompt = str | list[int]
Output = tuple[int, list[int]]  # request id, output token ids


class LLMEngine:
    def __init__(self, model: str, **options: Any) -> None:
        """Load `model`, reserve the KV pool and capture decode graphs; options are those of `Config`."""
        config = Config.create(model, **options)
        self.tokenizer = AutoTokenizer.from_pretrained(config.model, local_files_only=True)
        context = mp.get_context("spawn")
        events = [context.Semaphore(0) for _ in range(1, config.tensor_parallel_size)]
        self.processes = [
            context.Process(target=run_rank, args=(config, rank, event), daemon=True)
            for rank, event in enumerate(events, 1)
        ]
        for process in self.processes:
            process.start()
        self.owned = owning(self.processes)
        try:
            self.model_runner = ModelRunner(config, 0, events, self.processes, self.owned)
        except BaseException:
            for process in self.processes:
                process.terminate()  # they wait for a rank 0 that will not come
            self.owned.close()
            raise
        self.config = self.model_runner.config.replace(num_kvcache_blocks=self.model_runner.num_kvcache_blocks)
        self.scheduler = Scheduler(self.config)
        self.requests: dict[int, Sequence] = {}
        self._request_ids = count()
        self.exited = False
        atexit.register(self.exit)
        if config.device == "cuda":
            gc.freeze()  # what is loaded now stays: a collection in the middle of a step would look at it all

    def exit(self) -> None:
        """Stop every rank and give the device memory back; a second call does nothing."""
        if self.exited:
            return
        self.exited = True
        atexit.unregister(self.exit)
        self.model_runner.exit()
        del self.model_runner  # weights and KV pool
        gc.unfreeze()
        gc.collect()  # modules and captured graphs refer to each other; only then can the device memory go back
        if self.config.device == "cuda":
            torch.cuda.empty_cache()

    def add_request(self, prompt: Prompt, params: SamplingParams) -> int:
        """Queue one request and return its id; RequestError if it could never run."""
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        token_ids = self.check_request(token_ids, params)
        seq = Sequence(next(self._request_ids), token_ids, params, self.config.kvcache_block_size)
        self.requests[seq.seq_id] = seq
        self.scheduler.add(seq)
        return seq.seq_id

    def check_request(self, token_ids: list[int], params: SamplingParams) -> list[int]:
        """The prompt as plain ints, if this engine can ever run it; RequestError names the value and the limit."""
        config, vocab_size = self.config, self.config.hf_config.vocab_size
        try:
            token_ids = [index(token) for token in token_ids]
        except TypeError as error:
            raise RequestError(f"a prompt is a string or a list of integer token ids ({error})") from error
        if not token_ids:
            raise RequestError("the prompt is empty; give at least 1 token")
        if outside := [token for token in token_ids if not 0 <= token < vocab_size]:
            raise RequestError(
                f"token id {outside[0]} is outside the vocabulary of {vocab_size} ids (0 to {vocab_size - 1})"
            )
        total = len(token_ids) + params.max_tokens
        if total > config.max_model_len:
            raise RequestError(
                f"prompt of {len(token_ids)} tokens + max_tokens {params.max_tokens} = {total} exceeds max_model_len "
                f"{config.max_model_len}; shorten the prompt, ask for fewer tokens or raise max_model_len"
            )
        pool = config.num_kvcache_blocks * config.kvcache_block_size
        if len(token_ids) > pool:
            raise RequestError(
                f"prompt of {len(token_ids)} tokens can never fit the KV pool of {config.num_kvcache_blocks} blocks x "
                f"{config.kvcache_block_size} = {pool} tokens; shorten it or give the engine more blocks"
            )
        return token_ids

    def abort(self, request_id: int) -> bool:
        """End a request between two steps and release its blocks; False if it is unknown or already over."""
        seq = self.requests.pop(request_id, None)
        if seq is None:
            return False
        self.scheduler.abort(seq)
        return True

    def step(self) -> tuple[list[Output], int]:
        """Run one step: (outputs of requests that ended in it, +n prefill tokens or -n decode tokens)."""
        seqs, is_prefill = self.scheduler.schedule()
        num_tokens = sum(seq.num_scheduled_tokens for seq in seqs) if is_prefill else -len(seqs)
        if seqs and os.environ.get("NANO_LAB_TRACE") == "1":
            print_step(seqs, is_prefill)
        if seqs:
            token_ids = self.model_runner.run(seqs, is_prefill)
            self.scheduler.postprocess(seqs, token_ids, is_prefill)
        ended = [seq for seq in seqs if seq.is_finished] + self.scheduler.take_exhausted()
        return self.take_outputs(ended), num_tokens

    def steps(self) -> Iterator[tuple[list[Output], int]]:
        """What `step()` returns, until all requests have ended. Nothing may be added or aborted meanwhile.

        With `run_ahead` a decode step is launched before the tokens of the one before it are read. Closed early, it
        leaves the engine between two steps.
        """
        while not self.is_finished():
            if self.may_run_ahead() and self.scheduler.next_decode_is_certain():
                for ended, num_tokens in decode_ahead(self.scheduler, self.model_runner):
                    yield self.take_outputs(ended), -num_tokens
            else:
                yield self.step()

    def may_run_ahead(self) -> bool:
        """Ranks that share a step's memory must have read one before the next is written."""
        if os.environ.get("NANO_LAB_TRACE") == "1":
            return False  # steps are shown where step() takes them
        return self.config.run_ahead and self.config.tensor_parallel_size == 1

    def take_outputs(self, ended: list[Sequence]) -> list[Output]:
        for seq in ended:
            del self.requests[seq.seq_id]
        return [(seq.seq_id, seq.completion_token_ids) for seq in ended]

    def is_finished(self) -> bool:
        return self.scheduler.is_finished()

    def generate(
        self, prompts: list[Prompt], params: SamplingParams | list[SamplingParams], use_tqdm: bool = True
    ) -> list[dict[str, Any]]:
        """Run all `prompts` to their end; {"text", "token_ids"} for each, in input order."""
        each = params if isinstance(params, list) else [params] * len(prompts)
        request_ids: list[int] = []
        outputs: dict[int, list[int]] = {}
        rates = {"prefill": 0.0, "decode": 0.0}
        try:
            for prompt, p in zip(prompts, each, strict=True):
                request_ids.append(self.add_request(prompt, p))
            with tqdm(total=len(prompts), desc="Generating", dynamic_ncols=True, disable=not use_tqdm) as bar:
                start = perf_counter()
                for finished, num_tokens in self.steps():
                    now = perf_counter()
                    rates["prefill" if num_tokens > 0 else "decode"] = abs(num_tokens) / (now - start)
                    start = now
                    if use_tqdm:
                        bar.set_postfix({phase: f"{rate:.0f} tok/s" for phase, rate in rates.items()})
                        bar.update(len(finished))
                    outputs |= finished
        except BaseException:  # a bad prompt, Ctrl-C, an error in a step: the requests of this call must not linger
            for request_id in request_ids:
                self.abort(request_id)
            raise
        return [
            {"text": self.tokenizer.decode(outputs[request_id]), "token_ids": outputs[request_id]}
            for request_id in request_ids
        ]


def print_step(seqs: list[Sequence], is_prefill: bool) -> None:
    """One JSON line before the model runs: the phase, and each sequence's total, cached and scheduled tokens."""
    states = [
        {
            "seq_id": seq.seq_id,
            "total": seq.num_tokens,
            "cached": seq.num_cached_tokens,
            "scheduled": seq.num_scheduled_tokens,
        }
        for seq in seqs
    ]
    phase = "prefill" if is_prefill else "decode"
    print(json.dumps({"event": "engine_step", "phase": phase, "seqs": states}), flush=True)
