"""Runs scheduled batches on one device: weights, KV pool, inputs, forward pass, sampling.

One ModelRunner is one rank. Rank 0 prepares every step and samples; with tensor parallelism the other ranks receive
rank 0's inputs through shared memory and join the forward pass.
"""

import signal
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.process import BaseProcess
from time import monotonic, sleep
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from ..config import Config
from ..errors import ConfigError, RankError
from ..layers.attention import Attention, choose_backend, make_backend
from ..layers.parallel import TensorParallel
from ..layers.sampler import keep_most_likely, sample
from ..models.qwen3 import Qwen3ForCausalLM
from ..utils.context import StepInputs
from ..utils.loader import load_model
from .cuda_graph import LARGEST_GRAPH, DecodeGraphs, StepOutput, graph_sizes
from .device_memory import explained, free_memory, ran_out
from .input_builder import InputBuilder
from .rank_channel import RankChannel, Signal
from .run_ahead import LaunchedStep
from .sequence import Sequence
from .step_buffer import StepBuffer, StepHeader

COLLECTIVE_TIMEOUT = timedelta(seconds=120)
JOIN_SECONDS = 10.0
CPU_KV_BYTES = 2**30


class ModelRunner:
    def __init__(
        self,
        config: Config,
        rank: int = 0,
        events: list[Signal] | None = None,
        processes: Iterable[BaseProcess] = (),
        owned: ExitStack | None = None,
    ) -> None:
        """`processes` are the other ranks (rank 0 only); what this rank acquires is pushed onto `owned`."""
        self.processes = list(processes)
        self.owned = owned or ExitStack()
        self.config = config
        self.rank = rank
        self.tp = TensorParallel(rank, config.tensor_parallel_size)
        self.block_size = config.kvcache_block_size
        self.device = torch.device("cuda", rank) if config.device == "cuda" else torch.device("cpu")
        self.enforce_eager = config.enforce_eager or config.device == "cpu"
        self.attention = choose_backend(config.attention_backend, config.device, config.kvcache_block_size)
        if self.attention.name == "torch" and not self.enforce_eager:
            raise ConfigError(
                "the torch attention backend reads lengths on the host and cannot be captured; set enforce_eager=True "
                f"({self.attention.reason})"
            )
        self.graph_bs: list[int] = []
        self.decode_graphs = DecodeGraphs()
        self.channel: RankChannel | None = None
        if config.device == "cuda":
            torch.cuda.set_device(self.device)
        if self.tp.size > 1:
            self.join_group()
        self.backend = make_backend(self.attention, scale=config.head_dim**-0.5)
        with explained("loading the weights", "free the card, or choose another with CUDA_VISIBLE_DEVICES"):
            self.model = self.build_model()
        self.await_ranks("model loaded")
        self.fused_decode: Callable[[StepInputs], torch.Tensor] | None = None
        self.step_buffer = StepBuffer(config, self.device)
        self.inputs = InputBuilder(config, self.step_buffer)
        self.warm_up()
        self.num_kvcache_blocks = self.allocate_kv_cache()
        if not self.enforce_eager:
            with explained("capturing decode graphs", "set enforce_eager=True, or lower gpu_memory_utilization"):
                self.capture_graphs()
        if self.tp.size > 1:
            self.open_channel(events or [])

    # ---- setting up --------------------------------------------------------------------------------------

    def join_group(self) -> None:
        """Meet the other ranks at this engine's own address, which rank 0 serves."""
        backend = "nccl" if self.config.device == "cuda" else "gloo"
        device_id = self.device if self.config.device == "cuda" else None
        self.store = self.open_store()
        self.await_ranks("process started")
        dist.init_process_group(
            backend, store=self.store, world_size=self.tp.size, rank=self.rank,
            timeout=COLLECTIVE_TIMEOUT, device_id=device_id,
        )  # fmt: skip
        self.owned.callback(self.leave_group)

    def open_store(self) -> PrefixStore:
        """Where this engine's ranks meet; keys carry `shm_name`, so they are never mixed with another engine's."""
        address = urlsplit(self.config.dist_init_method)
        if dist.is_initialized():
            raise ConfigError("this process already runs a tensor-parallel engine; start another process for this one")
        try:
            store = TCPStore(
                str(address.hostname), int(address.port or 0), self.tp.size, is_master=self.rank == 0,
                timeout=COLLECTIVE_TIMEOUT, wait_for_workers=False,
            )  # fmt: skip
        except dist.DistNetworkError as error:
            raise RankError(
                f"rank {self.rank} cannot use {self.config.dist_init_method}: {error}; "
                "if another engine holds that port, give this one another dist_init_method"
            ) from error
        return PrefixStore(self.config.shm_name, store)

    def await_ranks(self, stage: str) -> None:
        """Announce that this rank has reached `stage`; rank 0 waits for every rank, but never for a dead one."""
        if self.tp.size == 1:
            return
        self.store.set(f"{stage}/{self.rank}", "reached")
        deadline = monotonic() + COLLECTIVE_TIMEOUT.total_seconds()
        for rank in range(1, len(self.processes) + 1):
            while not self.store.check([f"{stage}/{rank}"]):
                self.check_ranks(f"before {stage!r}; its own error is above")
                if monotonic() > deadline:
                    raise RankError(f"rank {rank} did not reach {stage!r} within {COLLECTIVE_TIMEOUT.seconds} s")
                sleep(0.02)

    def check_ranks(self, when: str = "between two steps; start the engine again") -> None:
        """Rank 0: a rank whose process has ended is an error, because the next collective would wait for it."""
        for rank, process in enumerate(self.processes, 1):
            if not process.is_alive():
                raise RankError(f"rank {rank} ended with exit code {process.exitcode} {when}")

    def leave_group(self) -> None:
        if self.config.device == "cuda" and any(process.exitcode for process in self.processes):
            dist.distributed_c10d._abort_process_group()  # leaving in order would wait for the rank that failed
        else:
            dist.destroy_process_group()

    def open_channel(self, events: list[Signal]) -> None:
        """Rank 0 makes the shared memory, then the others open it."""
        name, words = self.config.shm_name, len(self.step_buffer.host)
        self.await_ranks("ready to run")
        if self.rank == 0:
            self.channel = RankChannel(name, words, events, create=True, check_ranks=self.check_ranks)
            self.owned.callback(self.channel.close)
            self.owned.callback(self.channel.publish_exit)  # called first: the stack unwinds from the newest
        dist.barrier()
        if self.rank > 0:
            self.channel = RankChannel(name, words, events, create=False)
            self.owned.callback(self.channel.close)
        self.await_ranks("shared memory open")  # an engine that is closed at once removes it

    def build_model(self) -> Qwen3ForCausalLM:
        default_dtype = torch.get_default_dtype()
        torch.set_default_dtype(self.config.torch_dtype)
        try:
            with self.device:
                model = Qwen3ForCausalLM(self.config, self.backend, self.tp).eval()
        finally:
            torch.set_default_dtype(default_dtype)
        load_model(model, self.config.model)
        return model

    @torch.inference_mode()
    def warm_up(self) -> None:
        """CUDA: run the largest prefill once, so that the KV pool can be sized from the true peak."""
        if self.config.device == "cpu":
            return
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        size = self.config.max_num_batched_tokens
        with explained(f"running a prefill step of {size} tokens", "lower max_num_batched_tokens, or free the card"):
            self.forward(self.dummy_prefill())
            torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def dummy_prefill(self) -> StepInputs:
        """A prefill step of the largest size that belongs to no request and writes no KV (there is no cache yet)."""
        length = min(self.config.max_num_batched_tokens, self.config.max_model_len)
        count = max(1, min(self.config.max_num_batched_tokens // length, self.config.max_num_seqs))
        rows = torch.zeros(count, dtype=torch.int32, device=self.device)
        tokens = torch.zeros(count * length, dtype=torch.int32, device=self.device)
        positions = torch.arange(length, dtype=torch.int32, device=self.device).repeat(count)
        bounds = torch.arange(count + 1, dtype=torch.int32, device=self.device) * length
        return StepInputs(
            True, tokens, positions, tokens - 1, rows + length, rows.float(), rows, bounds, bounds, length, length
        )

    def allocate_kv_cache(self) -> int:
        """Reserve the pool and give every attention layer its slice; returns the number of blocks."""
        blocks = self.config.num_kvcache_blocks
        if blocks < 0:
            blocks = self.blocks_that_fit()
            self.await_ranks("KV pool sized")
            blocks = self.tp.minimum(blocks, self.device)
        hf = self.config.hf_config
        shape = (2, hf.num_hidden_layers, blocks, self.block_size, self.config.num_kv_heads, self.config.head_dim)
        size = f"{blocks} KV blocks of {self.config.kv_block_bytes / 2**20:.3g} MiB"
        with explained(f"reserving {size}", "lower num_kvcache_blocks or gpu_memory_utilization, or free the card"):
            self.kv_cache = torch.zeros(shape, dtype=self.config.torch_dtype, device=self.device)
        layers = [module for module in self.model.modules() if isinstance(module, Attention)]
        for layer, k_cache, v_cache in zip(layers, self.kv_cache[0], self.kv_cache[1], strict=True):
            layer.k_cache, layer.v_cache = k_cache, v_cache
        self.backend.reserve(self.config.max_num_seqs, hf.num_attention_heads // self.tp.size, layers[0].k_cache)
        return blocks

    def blocks_that_fit(self) -> int:
        """CUDA: what gpu_memory_utilization leaves after weights and peak work. CPU: the limits, or 1 GiB."""
        block_bytes = self.config.kv_block_bytes
        if self.config.device == "cpu":
            enough = self.config.max_num_seqs * self.config.max_blocks_per_seq
            return max(1, min(enough, CPU_KV_BYTES // block_bytes))
        free, total = torch.cuda.mem_get_info()
        stats = torch.cuda.memory_stats()
        peak_work = stats["allocated_bytes.all.peak"] - stats["allocated_bytes.all.current"]
        budget = int(total * self.config.gpu_memory_utilization) - (total - free) - peak_work
        if budget < block_bytes:
            raise ConfigError(
                f"one KV block needs {block_bytes / 2**20:.0f} MiB but {budget / 2**20:.0f} MiB are left of "
                f"{total / 2**20:.0f} MiB ({free / 2**20:.0f} MiB free) at gpu_memory_utilization "
                f"{self.config.gpu_memory_utilization}; raise it, lower max_num_batched_tokens, or free the card"
            )
        return budget // block_bytes

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture a decode step for every graph size, largest first so that the others reuse its memory.

        Where memory runs out before the last one, the engine works on without graphs and says so.
        """
        if self.tp.size == 1:
            from ..models.qwen3_decode import Qwen3FusedDecode  # needs triton, which a CPU host may lack

            self.fused_decode = Qwen3FusedDecode(self.model, self.backend)
        self.graph_bs = graph_sizes(self.config.max_num_seqs)
        self.inputs.clear_decode()
        self.step_buffer.send(self.step_buffer.decode_layout.words)
        width = self.step_buffer.decode_layout.width
        for size in reversed(self.graph_bs):
            header = StepHeader(False, size, size, 1, self.config.max_model_len, width, 0)
            try:
                self.decode_graphs.capture(size, self.forward, self.step_buffer.device_inputs(header))
            except RuntimeError as error:
                if not ran_out(error) or self.tp.size > 1:  # ranks must not disagree about what they replay
                    raise
                break
        if len(self.decode_graphs.graphs) < len(self.graph_bs):
            self.stay_eager()

    def stay_eager(self) -> None:
        """Give up the graphs captured so far; the KV pool stays as it is."""
        captured, wanted = len(self.decode_graphs.graphs), len(self.graph_bs)
        self.decode_graphs, self.graph_bs, self.fused_decode = DecodeGraphs(), [], None
        self.enforce_eager, self.config = True, self.config.replace(enforce_eager=True)
        torch.cuda.empty_cache()
        warnings.warn(
            f"the GPU's memory ran out after {captured} of {wanted} decode graphs (now {free_memory()}): this engine "
            f"runs eagerly. For graphs lower gpu_memory_utilization ({self.config.gpu_memory_utilization}) or "
            f"max_num_seqs ({self.config.max_num_seqs})",
            RuntimeWarning,
            stacklevel=2,
        )

    # ---- running steps -----------------------------------------------------------------------------------

    def run(self, seqs: list[Sequence], is_prefill: bool) -> list[int]:
        """One candidate token per sequence of the batch (rank 0)."""
        inputs = self.prepare_prefill(seqs) if is_prefill else self.prepare_decode(seqs)
        output = self.run_model(inputs)
        return self.choose_tokens(output, inputs, seqs)

    @torch.inference_mode()
    def launch(self, seqs: list[Sequence], after: LaunchedStep | None) -> LaunchedStep:
        """Start a decode step; what it reads as input ids are the candidates of the step `after`, if there is one."""
        if after is None:
            inputs = self.prepare_decode(seqs)
        else:
            inputs = self.send(self.inputs.decode(seqs, after.rows_of(seqs)))
            inputs.input_ids.copy_(after.token_ids[inputs.input_ids])
        return LaunchedStep(seqs, self.draw(self.run_model(inputs), inputs, seqs))

    def prepare_prefill(self, seqs: list[Sequence]) -> StepInputs:
        return self.send(self.inputs.prefill(seqs))

    def prepare_decode(self, seqs: list[Sequence]) -> StepInputs:
        return self.send(self.inputs.decode(seqs))

    def send(self, header: StepHeader) -> StepInputs:
        """Move the staged step to the device, and to the other ranks."""
        if self.channel is not None:
            self.channel.publish(header, self.step_buffer.host[: header.words])
        self.step_buffer.send(header.words)
        return self.step_buffer.device_inputs(header)

    @torch.inference_mode()
    def run_model(self, inputs: StepInputs) -> StepOutput:
        """Logits and candidates of one step: replay a captured decode graph, or run the model eagerly."""
        if inputs.is_prefill or self.enforce_eager or inputs.num_seqs > LARGEST_GRAPH:
            return self.forward(inputs)
        size = next((size for size in self.graph_bs if size >= inputs.num_seqs), None)
        if size is None:  # no captured size is large enough: same model, same cache, launched kernel by kernel
            return self.forward(inputs)
        return self.decode_graphs.replay(size, inputs.num_seqs)

    def forward(self, inputs: StepInputs) -> StepOutput:
        """The whole step on the device: model, head, and the draw of one candidate per sequence."""
        if self.fused_decode is not None and not inputs.is_prefill:
            logits: torch.Tensor | None = self.fused_decode(inputs)
        else:
            logits = self.model.compute_logits(self.model(inputs), inputs)
        if logits is None:
            return StepOutput(None, None)
        positions = inputs.positions[inputs.last_rows] if inputs.is_prefill else inputs.positions
        return StepOutput(logits, sample(logits, inputs.temperatures, inputs.seeds, positions))

    def choose_tokens(self, output: StepOutput, inputs: StepInputs, seqs: list[Sequence]) -> list[int]:
        """Read the candidates: the one place where a plain step waits for the device."""
        ids: list[int] = self.draw(output, inputs, seqs).tolist()
        return ids

    @torch.inference_mode()
    def draw(self, output: StepOutput, inputs: StepInputs, seqs: list[Sequence]) -> torch.Tensor:
        """[N] candidates on the device; a batch with top-k or top-p draws again from its filtered logits."""
        logits, token_ids = output
        assert logits is not None and token_ids is not None
        if self.inputs.filters_logits:
            top_k, top_p = [seq.params.top_k for seq in seqs], [seq.params.top_p for seq in seqs]
            kept = keep_most_likely(logits, inputs.temperatures, top_k, top_p)
            positions = inputs.positions[inputs.last_rows] if inputs.is_prefill else inputs.positions
            token_ids = sample(kept, inputs.temperatures, inputs.seeds, positions)
        return token_ids

    # ---- other ranks -------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Ranks other than 0: run whatever rank 0 publishes until it says exit."""
        assert self.channel is not None
        while (message := self.channel.receive()) is not None:
            header, words = message
            self.step_buffer.wait_until_writable()
            self.step_buffer.host[: header.words] = words
            self.step_buffer.send(header.words)
            self.run_model(self.step_buffer.device_inputs(header))

    def exit(self) -> None:
        """Release what this rank acquired, newest first, and nothing else; a second call does nothing."""
        self.decode_graphs = DecodeGraphs()  # before the group: they hold its communicators
        self.channel = None
        self.owned.close()


def owning(processes: Iterable[BaseProcess]) -> ExitStack:
    """What one engine acquires, released newest first and exactly once; its other ranks end last."""
    owned = ExitStack()
    owned.callback(end_ranks, list(processes))
    return owned


def end_ranks(processes: list[BaseProcess]) -> None:
    """Wait for every rank to end by itself; after JOIN_SECONDS ask it to (SIGTERM), then make it (SIGKILL)."""
    for insist in (None, BaseProcess.terminate, BaseProcess.kill):
        deadline = monotonic() + JOIN_SECONDS
        running = [process for process in processes if process.is_alive()]
        for process in running:
            if insist:
                insist(process)
        for process in running:
            process.join(max(0.0, deadline - monotonic()))


def run_rank(config: Config, rank: int, event: Signal) -> None:
    """Entry point of the process that is rank `rank` > 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; rank 0 says when to end
    with ExitStack() as owned:
        runner = ModelRunner(config, rank, [event], owned=owned)
        runner.follow()
        runner.exit()
