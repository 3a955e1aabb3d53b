"""Engines that are wrong on purpose: small rewrites of the bundled source, and the check that must catch each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCHEDULER, BLOCKS = "engine/scheduler.py", "engine/block_manager.py"
INPUTS, TORCH = "engine/input_builder.py", "layers/attention_torch.py"


@dataclass(frozen=True)
class Wrong:
    """`rewrites` are (file, old, new), each old text occurring exactly once; `says` is part of the check's message."""

    name: str
    check: str
    says: str
    rewrites: tuple[tuple[str, str, str], ...]

    def write(self, package: Path) -> None:
        for file, old, new in self.rewrites:
            path = package / file
            text = path.read_text("utf-8")
            count = text.count(old)
            assert count == 1, f"{self.name}: {old!r} occurs {count} times in {file}; update tests/wrong/engines.py"
            path.write_text(text.replace(old, new), "utf-8")


def wrong(name: str, check: str, says: str, *rewrites: tuple[str, str, str]) -> Wrong:
    return Wrong(name, check, says, rewrites)


WRONG = (
    wrong(
        "a chunk's candidate is accepted", "chunks_and_budget", "accepted the candidate of a middle prefill chunk",
        (SCHEDULER, "if is_prefill and cached < seq.num_tokens:", "if False:"),
    ),
    wrong(
        "rotation removed", "rotation", "must reach all six",
        (SCHEDULER, "self.running.extend(seqs)", "self.running.extendleft(reversed(seqs))"),
    ),
    wrong(
        "the last block is matched", "reference_counts", "hits_of_exactly_512: saw 2, expected 1",
        (BLOCKS, "for index in range(seq.num_blocks - 1):", "for index in range(seq.num_blocks):"),
    ),
    wrong(
        "prefill slots off by one", "shared_prefixes", "the runner gets slot_mapping",
        (INPUTS, "return table[positions // self.block_size] * self.block_size + positions % self.block_size",
         "return table[positions // self.block_size] * self.block_size + (positions + 1) % self.block_size"),
    ),
    wrong(
        "decode slots off by one", "shared_prefixes", "the runner gets slot_mapping",
        (INPUTS, "positions = total - 1\n", "positions = total - 1\n        positions[:1] += 1\n"),
    ),
    wrong(
        "a stale hash is kept", "shared_prefixes", "a stale hash still leads to block",
        (BLOCKS, "            del self.hash_to_block_id[block.hash]\n", "            pass\n"),
    ),
    wrong(
        "a padded row gets a slot", "padded_rows", "a padded row has slot_mapping",
        (INPUTS, 'rows["slot_mapping"][count:] = -1', 'rows["slot_mapping"][count:] = 0'),
    ),
    wrong(
        "a padded row writes the cache", "padded_rows", "a padded row wrote the K cache",
        (TORCH, "real = step.slot_mapping >= 0", "real = step.slot_mapping >= -1"),
    ),
    wrong(
        "a padded row reads the cache", "padded_rows", "a padded row has context_lens",
        (INPUTS, 'rows["context_lens"][count:] = 0', 'rows["context_lens"][count:] = 1'),
    ),
    wrong(
        "a preempted sequence keeps its blocks", "preemption", "'blocks': [2]",
        (SCHEDULER, "        seq.status = SequenceStatus.WAITING\n        self.block_manager.deallocate(seq)\n",
         "        seq.status = SequenceStatus.WAITING\n"),
    ),
    wrong(
        "the budget is ignored for a later sequence", "chunks_and_budget", "the budget is 8",
        (SCHEDULER, "if seqs and num_missing > budget:", "if False:"),
        (SCHEDULER, "seq.num_scheduled_tokens = min(num_missing, budget)",
         "seq.num_scheduled_tokens = num_missing if seqs else min(num_missing, budget)"),
    ),
    wrong(
        "a later sequence is chunked", "chunks_and_budget", "although it is not the first of its batch",
        (SCHEDULER, "if seqs and num_missing > budget:", "if False:"),
    ),
    wrong(
        "a hash forgets what came before", "shared_prefixes", "holds the keys of other tokens",
        (BLOCKS, "if previous != NO_HASH:", "if False:"),
    ),
    wrong(
        "equal hashes are trusted", "colliding_hashes", "holds the keys of other tokens",
        (BLOCKS, "if block_id is None or self.blocks[block_id].token_ids != token_ids:", "if block_id is None:"),
    ),
    wrong(
        "a shared block is counted once", "reference_counts", "ref_counts: saw [[0, 0], [1, 1], [1, 1]",
        (BLOCKS, "            block.ref_count += 1\n", "            block.ref_count = 1\n"),
    ),
    wrong(
        "a finished sequence keeps its blocks", "chunks_and_budget", "(FINISHED) still holds",
        (SCHEDULER, "        self.running.remove(seq)\n        self.block_manager.deallocate(seq)\n",
         "        self.running.remove(seq)\n"),
    ),
    wrong(
        "the free list is last-in-first-out", "recorded_steps", "recorded [[",
        (BLOCKS, "block_id = self.free_block_ids.popleft()", "block_id = self.free_block_ids.pop()"),
    ),
    wrong(
        "the served batch goes to the tail by default", "recorded_steps", "waiting and running are",
        (SCHEDULER, "self.running.extendleft(reversed(seqs))", "self.running.extend(seqs)"),
    ),
    wrong(
        "balanced does not take turns", "alternation", "two prefill steps in a row",
        (SCHEDULER, "is_prefill = not (self.balanced and self.last_was_prefill)", "is_prefill = True"),
    ),
    wrong(
        "a preempted sequence overtakes a half-prefilled head", "alternation", "nothing was scheduled",
        (SCHEDULER, "behind_head = bool(self.waiting and self.waiting[0].block_table)", "behind_head = False"),
    ),
    wrong(
        "a chunk is longer than the budget", "case_d", "total/cached/scheduled before",
        (SCHEDULER, "seq.num_scheduled_tokens = min(num_missing, budget)", "seq.num_scheduled_tokens = num_missing"),
    ),
)  # fmt: skip
