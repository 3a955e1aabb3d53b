"""Which way a step was executed: a captured graph replayed, or the model called; recorded from what ran.

A call of the embedding layer means that the model was executed by Python, kernel by kernel; a call of
`torch.cuda.CUDAGraph.replay` means that a captured graph was. Neither is inferred from the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nanolab.sources import EngineDriver


@dataclass(frozen=True)
class Route:
    """What executed one step. `padding` holds [slot, context length] of the rows a replay ran beyond the batch."""

    replayed: tuple[int | None, ...]  # captured batch size of each replay; None: a graph the engine does not list
    model_calls: int
    padding: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """ "eager", "graph 16", or whatever mixture ran."""
        replays = [f"graph {size}" for size in self.replayed]
        calls = ["eager"] if self.model_calls == 1 else [f"eager x{self.model_calls}"] if self.model_calls else []
        return " + ".join(replays + calls) or "nothing"

    @property
    def padding_safe(self) -> bool:
        """Whether every padded row has slot -1 (writes no KV) and context length 0 (reads none)."""
        return all(row == (-1, 0) for row in self.padding)


class RouteProbe:
    """Watches one engine's graphs and model; `take()` says what ran since the last call."""

    def __init__(self, driver: EngineDriver) -> None:
        import torch

        self.driver = driver
        self.runner = driver.engine.model_runner
        self.batch = 0  # sequences of the step that runs next; set by the caller
        self._replayed: list[int | None] = []
        self._padding: list[tuple[int, int]] = []
        self._calls = 0
        self._graph_class: Any = torch.cuda.CUDAGraph
        self._replay = self._graph_class.replay
        setattr(self._graph_class, "replay", self._observed_replay())  # noqa: B010 - mypy knows it as a method
        embedding = self.runner.model.model.embed_tokens
        self._hook = embedding.register_forward_pre_hook(self._count_call)

    def _count_call(self, *_: Any) -> None:
        self._calls += 1

    def _observed_replay(self) -> Any:
        original = self._replay

        def replay(graph: Any) -> Any:
            size = next((size for size, known in captured_graphs(self.runner).items() if known is graph), None)
            self._replayed.append(size)
            if size is not None:
                self._padding += padded_rows(self.driver, self.batch, size)
            return original(graph)

        return replay

    def take(self) -> Route:
        route = Route(tuple(self._replayed), self._calls, tuple(self._padding))
        self._replayed, self._padding, self._calls = [], [], 0
        return route

    def detach(self) -> None:
        setattr(self._graph_class, "replay", self._replay)  # noqa: B010
        self._hook.remove()


def captured_graphs(runner: Any) -> dict[int, Any]:
    """{batch size: graph} of the live runner; empty when it captured none."""
    holder = getattr(runner, "decode_graphs", runner)
    graphs: dict[int, Any] = getattr(holder, "graphs", {})
    return graphs


def padded_rows(driver: EngineDriver, batch: int, size: int) -> list[tuple[int, int]]:
    """(slot, context length) that the device holds for rows `batch`..`size` of a captured step."""
    runner = driver.engine.model_runner
    if driver.source.kind == "upstream":
        slots, lengths = runner.graph_vars["slot_mapping"], runner.graph_vars["context_lens"]
    else:
        header_class = driver.source.module("engine.step_buffer").StepHeader
        width = runner.step_buffer.decode_layout.width
        seen = runner.step_buffer.device_inputs(header_class(False, size, size, 1, driver.max_model_len, width, 0))
        slots, lengths = seen.slot_mapping, seen.context_lens
    return list(zip(slots[batch:size].tolist(), lengths[batch:size].tolist(), strict=True))
