"""What the model runner sends to the model, and the shapes that come out of layer 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanolab.sources import EngineDriver

FIELDS = ("slot_mapping", "context_lens", "cu_seqlens_q", "cu_seqlens_k", "block_tables")


def step_inputs(driver: EngineDriver, prepared: Any) -> dict[str, Any]:
    """The runner's inputs of one step as lists, from what its prepare method returned.

    Keys: input_ids, positions, slot_mapping, context_lens (decode), cu_seqlens_q and cu_seqlens_k (prefill),
    block_tables (None when no key is read from the cache).
    """
    if driver.source.kind == "upstream":
        input_ids, positions = prepared
        context = driver.source.module("utils.context").get_context()
    else:
        input_ids, positions, context = prepared.input_ids, prepared.positions, prepared
    inputs = {"input_ids": input_ids.tolist(), "positions": positions.tolist()}
    for name in FIELDS:
        value = getattr(context, name)
        inputs[name] = None if value is None else value.tolist()
    if context.is_prefill:
        inputs["context_lens"] = None
    return inputs


class RunnerProbe:
    """Calls `on_inputs(inputs)` each time the runner has prepared a step."""

    def __init__(self, driver: EngineDriver, on_inputs: Callable[[dict[str, Any]], None]) -> None:
        self.runner = driver.engine.model_runner
        for name in ("prepare_prefill", "prepare_decode"):
            setattr(self.runner, name, self._wrap(driver, getattr(self.runner, name), on_inputs))

    @staticmethod
    def _wrap(driver: EngineDriver, prepare: Callable[..., Any], on_inputs: Callable[[dict[str, Any]], None]) -> Any:
        def prepared_and_seen(seqs: Any) -> Any:
            prepared = prepare(seqs)
            on_inputs(step_inputs(driver, prepared))
            return prepared

        return prepared_and_seen

    def detach(self) -> None:
        for name in ("prepare_prefill", "prepare_decode"):
            vars(self.runner).pop(name, None)


class ShapeProbe:
    """Collects output shapes of the embedding, of layer 0's parts and of the logits, one dict a step."""

    LINEARS = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")

    def __init__(self, driver: EngineDriver) -> None:
        model = driver.engine.model_runner.model
        layer = model.model.layers[0]
        self.shapes: dict[str, list[int]] = {}
        self._handles = [model.model.embed_tokens.register_forward_hook(self._keep("embedding"))]
        for path in self.LINEARS:
            module = layer.get_submodule(path)
            self._handles.append(module.register_forward_hook(self._keep(path.rpartition(".")[2])))
        self._handles.append(layer.self_attn.attn.register_forward_pre_hook(self._keep_qkv))
        self._handles.append(model.lm_head.register_forward_hook(self._keep("logits")))

    def _keep(self, name: str) -> Callable[..., None]:
        def keep(_module: Any, _args: Any, output: Any) -> None:
            if output is not None:
                self.shapes[name] = list(output.shape)

        return keep

    def _keep_qkv(self, _module: Any, args: tuple[Any, ...]) -> None:
        self.shapes |= {name: list(x.shape) for name, x in zip("qkv", args, strict=False)}

    def take(self) -> dict[str, list[int]]:
        """The shapes seen since the last call."""
        shapes, self.shapes = self.shapes, {}
        return shapes

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
