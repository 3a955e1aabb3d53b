"""The four moments of every step, as events: before it is scheduled, scheduled, sent to the model, accounted for.

Each event is a flat dict with `event` and `step`; lists hold one entry per sequence, named by whoever watches.
With `shapes` the outputs of the embedding, of layer 0's parts and of the head follow the inputs as `model_shape`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from nanolab.sources import EngineDriver

from .runner import RunnerProbe, ShapeProbe

Emit = Callable[[dict[str, Any]], None]


class StepRecorder:
    def __init__(self, driver: EngineDriver, emit: Emit, *, shapes: bool = False) -> None:
        self.driver, self.emit = driver, emit
        self.names: dict[int, str] = {}
        self.step = 0
        self.scheduler = driver.engine.scheduler
        self._schedule, self._postprocess = self.scheduler.schedule, self.scheduler.postprocess
        self.scheduler.schedule = self._observed_schedule
        self.scheduler.postprocess = self._observed_postprocess
        self._runner = RunnerProbe(driver, self._on_inputs)
        self._shapes = ShapeProbe(driver) if shapes else None

    def watch(self, seq: Any, name: str) -> None:
        """Call `seq` by `name` in every event from now on."""
        self.names[seq.seq_id] = name

    def detach(self) -> None:
        self.scheduler.schedule = self._schedule
        vars(self.scheduler).pop("postprocess", None)
        self._runner.detach()
        if self._shapes:
            self._shapes.detach()

    # ---- moments -----------------------------------------------------------------------------------------

    def _observed_schedule(self) -> tuple[list[Any], bool]:
        self.step += 1
        queues = {name: [self._state(s) for s in getattr(self.driver, name)] for name in ("waiting", "running")}
        self._emit("before_schedule", **queues, free_blocks=self.driver.free_blocks)
        seqs, is_prefill = self._schedule()
        self._phase = "prefill" if is_prefill else "decode"
        batch = [self._state(seq) for seq in seqs]
        self._emit("scheduled", phase=self._phase, batch=batch, free_blocks=self.driver.free_blocks)
        return seqs, is_prefill

    def _on_inputs(self, inputs: dict[str, Any]) -> None:
        shown = inputs | {"block_tables": self._used_pages(inputs)}
        self._emit("gpu_inputs", phase=self._phase, input_shape=[len(inputs["input_ids"])], **shown)

    def _used_pages(self, inputs: dict[str, Any]) -> list[list[int]] | None:
        """Block-table rows without their padding, which may hold any value."""
        if inputs["block_tables"] is None:
            return None
        bounds = inputs["cu_seqlens_k"]
        lengths = inputs["context_lens"] or [end - start for start, end in pairwise(bounds)]
        size = self.driver.block_size
        return [row[: -(-length // size)] for row, length in zip(inputs["block_tables"], lengths, strict=False)]

    def _observed_postprocess(self, seqs: list[Any], token_ids: list[int], is_prefill: bool) -> None:
        for name, shape in (self._shapes.take() if self._shapes else {}).items():
            self._emit("model_shape", phase=self._phase, layer=0, name=name, shape=shape)
        outputs = [seq.num_completion_tokens for seq in seqs]
        self._postprocess(seqs, token_ids, is_prefill)
        batch = [
            self._state(seq)
            | {
                "status": seq.status.name,
                "candidate": token_id,
                "accepted": token_id if seq.num_completion_tokens > before else None,
                "outputs": seq.num_completion_tokens,
            }
            for seq, token_id, before in zip(seqs, token_ids, outputs, strict=True)
        ]
        self._emit("after_postprocess", phase=self._phase, batch=batch, free_blocks=self.driver.free_blocks)

    def _state(self, seq: Any) -> dict[str, Any]:
        return {
            "request": self.names.get(seq.seq_id, str(seq.seq_id)),
            "seq_id": seq.seq_id,
            "total": seq.num_tokens,
            "cached": seq.num_cached_tokens,
            "scheduled": seq.num_scheduled_tokens,
            "block_table": list(seq.block_table),
        }

    def _emit(self, event: str, **fields: Any) -> None:
        self.emit({"event": event, "step": self.step, **fields})
