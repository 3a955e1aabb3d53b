"""Which sequences run in the next step, and what happens to them after it.

A step is either a prefill step (prompt tokens, many per sequence) or a decode step (one token per sequence).
`waiting` holds sequences whose known tokens are not all in the cache, `running` those that only decode.
"""

from collections import deque

from ..config import Config
from .block_manager import BlockManager
from .sequence import UNREAD, Sequence, SequenceStatus


class Scheduler:
    def __init__(self, config: Config) -> None:
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.eos = frozenset(config.eos)
        self.block_manager = BlockManager(config.num_kvcache_blocks, config.kvcache_block_size)
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()
        self.exhausted: list[Sequence] = []  # finished while scheduling: the pool can never hold them
        self.balanced = config.scheduling_policy == "balanced"
        self.last_was_prefill = False

    def is_finished(self) -> bool:
        return not (self.waiting or self.running or self.exhausted)

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def schedule(self) -> tuple[list[Sequence], bool]:
        """The next batch and whether it is a prefill step; an empty batch only if nothing can run.

        prefill_first: a prefill step whenever one is possible. balanced: the phase that did not run last.
        """
        is_prefill = not (self.balanced and self.last_was_prefill)
        seqs = self.select_prefill() if is_prefill else self.select_decode()
        if not seqs:  # the preferred phase has nothing to run, or no KV to run it in
            is_prefill = not is_prefill
            seqs = self.select_prefill() if is_prefill else self.select_decode()
        self.last_was_prefill = is_prefill
        return seqs, is_prefill

    def select_prefill(self) -> list[Sequence]:
        """Take from the head of `waiting` within the token budget; only the first sequence may be chunked."""
        seqs: list[Sequence] = []
        budget = self.max_num_batched_tokens
        while self.waiting and len(seqs) < self.max_num_seqs and budget:
            seq = self.waiting[0]
            cached_blocks = 0
            if not seq.block_table:
                if self.can_never_fit(seq):
                    self.end_exhausted(self.waiting.popleft())
                    continue
                cached_blocks = self.block_manager.can_allocate(seq)
                if cached_blocks < 0:
                    break
            num_cached = seq.num_cached_tokens or cached_blocks * self.block_manager.block_size
            num_missing = seq.num_tokens - num_cached
            if seqs and num_missing > budget:
                break
            if not seq.block_table:
                self.block_manager.allocate(seq, cached_blocks)
            seq.num_scheduled_tokens = min(num_missing, budget)
            budget -= seq.num_scheduled_tokens
            seqs.append(seq)
            if seq.num_scheduled_tokens < num_missing:
                break
            seq.status = SequenceStatus.RUNNING
            self.running.append(self.waiting.popleft())
        return seqs

    def select_decode(self) -> list[Sequence]:
        """Take from the left of `running`, one token each, preempting from the right when blocks run out."""
        seqs: list[Sequence] = []
        while self.running and len(seqs) < self.max_num_seqs:
            seq = self.running.popleft()
            if self.block_manager.can_append(seq) or self.make_room(seq):
                self.block_manager.may_append(seq)
                seq.num_scheduled_tokens = 1
                seqs.append(seq)
        if self.balanced:
            self.running.extend(seqs)  # behind those that still wait for their turn
        else:
            self.running.extendleft(reversed(seqs))
        return seqs

    def make_room(self, seq: Sequence) -> bool:
        """Preempt until `seq` can have its next block; False if `seq` itself had to go."""
        while not self.block_manager.can_append(seq):
            if self.running:
                self.preempt(self.running.pop())
            elif self.can_never_fit(seq):
                self.end_exhausted(seq)
                return False
            else:
                self.preempt(seq)
                return False
        return True

    def preempt(self, seq: Sequence) -> None:
        """Give the blocks back, keep the token ids, and wait at the head to be prefilled again."""
        seq.status = SequenceStatus.WAITING
        self.block_manager.deallocate(seq)
        # A half-prefilled head keeps its place: it holds blocks, and only finishing it can free them.
        behind_head = bool(self.waiting and self.waiting[0].block_table)
        self.waiting.insert(1 if behind_head else 0, seq)

    def can_never_fit(self, seq: Sequence) -> bool:
        return seq.num_blocks > len(self.block_manager.blocks)

    def end_exhausted(self, seq: Sequence) -> None:
        self.block_manager.deallocate(seq)
        seq.finish("kv_exhausted")
        self.exhausted.append(seq)

    def take_exhausted(self) -> list[Sequence]:
        """Sequences that ended while scheduling or settling; each is handed out once."""
        ended, self.exhausted = self.exhausted, []
        return ended

    def abort(self, seq: Sequence) -> None:
        """End `seq` between two steps, wherever it is."""
        for queue in (self.waiting, self.running, self.exhausted):
            if seq in queue:
                queue.remove(seq)
        self.block_manager.deallocate(seq)
        seq.finish("cancelled")

    def unschedule(self) -> None:
        """Take back a decode batch that was not accounted for: preempt it, for it may hold a block it never filled."""
        for seq in [seq for seq in reversed(self.running) if seq.num_scheduled_tokens]:
            seq.num_scheduled_tokens = 0
            self.running.remove(seq)
            self.preempt(seq)

    def postprocess(self, seqs: list[Sequence], token_ids: list[int], is_prefill: bool) -> None:
        """Account for the KV just written, accept each candidate token, and let finished sequences go."""
        block_size = self.block_manager.block_size
        for seq, token_id in zip(seqs, token_ids, strict=True):
            cached = seq.num_cached_tokens + seq.num_scheduled_tokens
            if cached // block_size > seq.num_cached_tokens // block_size:
                self.block_manager.hash_blocks(seq)  # a block has just been filled
            seq.num_cached_tokens = cached
            seq.num_scheduled_tokens = 0
            if is_prefill and cached < seq.num_tokens:
                continue  # a chunk in the middle of a prompt: its candidate means nothing
            seq.append_token(token_id)
            if reason := self.stop_reason(seq, token_id):
                self.end(seq, reason)

    def end(self, seq: Sequence, reason: str) -> None:
        self.running.remove(seq)
        self.block_manager.deallocate(seq)
        seq.finish(reason)

    def next_decode_is_certain(self) -> bool:
        """Whether the next batch, whatever tokens come, decodes all that runs: nobody waits, no block is short."""
        if self.waiting or self.exhausted or not 0 < len(self.running) <= self.max_num_seqs:
            return False
        return len(self.block_manager.free_block_ids) >= len(self.running)

    def settle(self, seqs: list[Sequence], token_ids: list[int]) -> None:
        """Put the tokens of a step where its placeholders stand; take_exhausted() returns the sequences they end.

        A row without a placeholder belongs to a sequence that had ended when the step was accounted for.
        """
        for seq, token_id in zip(seqs, token_ids, strict=True):
            if seq.last_token != UNREAD:
                continue
            seq.token_ids[-1] = seq.last_token = token_id
            if reason := self.stop_reason(seq, token_id):
                if seq.is_finished:  # its length was known without the token
                    seq.finish(reason)
                else:
                    self.end(seq, reason)
                self.exhausted.append(seq)

    def stop_reason(self, seq: Sequence, token_id: int) -> str | None:
        if token_id in self.eos and not seq.ignore_eos:
            return "eos"
        if token_id in seq.stop_token_ids:
            return "stop"
        return "length" if seq.num_tokens >= seq.max_total_tokens else None
