"""What each reading topic shows: places in the source, and one line about each in both languages.

A part lists its places in order of preference: nanoengine's, then upstream's name for the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanolab.sources.engine_source import Kind

OURS: tuple[Kind, ...] = ("bundled", "working-copy")


@dataclass(frozen=True)
class Part:
    places: tuple[tuple[str, str], ...]  # (module path without .py, symbol)
    zh: str
    en: str
    absent_from: tuple[Kind, ...] = ()  # engines that do not have it, and need not


@dataclass(frozen=True)
class Topic:
    name: str
    title: str
    parts: tuple[Part, ...]


def at(*places: str, zh: str, en: str, absent_from: tuple[Kind, ...] = ()) -> Part:
    """`at("engine/scheduler:Scheduler.schedule", ...)`."""
    pairs = [place.partition(":") for place in places]
    return Part(tuple((module, symbol) for module, _, symbol in pairs), zh, en, absent_from)


ENGINE = Topic(
    "engine",
    "One request's life",
    (
        at(
            "engine/llm_engine:LLMEngine.add_request",
            zh="提示变成 token 编号，成为一个等待中的 Sequence。",
            en="A prompt becomes token ids and a waiting Sequence.",
        ),
        at(
            "engine/sequence:Sequence.__init__",
            zh="total、cached、scheduled 三个计数都在这里。",
            en="The three counts total, cached and scheduled live here.",
        ),
        at(
            "engine/llm_engine:LLMEngine.step",
            zh="一步：调度、运行、记账；步与步之间什么也不发生。",
            en="One step: schedule, run, account; nothing happens between steps.",
        ),
        at(
            "engine/scheduler:Scheduler.postprocess",
            zh="候选 token 在这里才被接受；中间的分块会丢弃它。",
            en="Here a candidate is accepted; a middle chunk discards it.",
        ),
        at(
            "engine/sequence:Sequence.append_token",
            zh="total 加一，cached 不变：最新的 token 还没有 KV。",
            en="total grows by one, cached does not: the newest token has no KV yet.",
        ),
        at(
            "engine/llm_engine:LLMEngine.generate",
            zh="离线入口：一直 step，直到没有请求。",
            en="The offline entry: step until no request is left.",
        ),
    ),
)

SCHEDULER = Topic(
    "scheduler",
    "Who runs in the next step",
    (
        at(
            "engine/scheduler:Scheduler.schedule",
            zh="每步只有一个阶段；默认先做 prefill。",
            en="Each step has one phase; by default prefill comes first.",
        ),
        at(
            "engine/scheduler:Scheduler.select_prefill",
            absent_from=("working-copy", "upstream"),
            zh="从 waiting 头部取；只有批中第一个可以分块。",
            en="Take from the head of waiting; only the first of a batch may be chunked.",
        ),
        at(
            "engine/scheduler:Scheduler.select_decode",
            absent_from=("working-copy", "upstream"),
            zh="从 running 左端取，每个一个 token。",
            en="Take from the left of running, one token each.",
        ),
        at(
            "engine/scheduler:Scheduler.make_room",
            absent_from=("upstream",),
            zh="没有空块时从 running 尾部抢占。",
            en="Without a free block, preempt from the tail of running.",
        ),
        at(
            "engine/scheduler:Scheduler.preempt",
            zh="交还所有块，保留 token，回到 waiting 头部。",
            en="Give every block back, keep the tokens, return to the head of waiting.",
        ),
        at(
            "engine/scheduler:Scheduler.postprocess",
            zh="cached 加上 scheduled；结束的请求释放块。",
            en="cached grows by scheduled; a finished request releases its blocks.",
        ),
    ),
)

BLOCKS = Topic(
    "blocks",
    "Blocks, sharing and reuse",
    (
        at(
            "engine/block_manager:Block",
            zh="一页 KV：引用计数、哈希、内容。",
            en="One page of KV: reference count, hash, content.",
        ),
        at(
            "engine/block_manager:BlockManager.__init__",
            zh="空闲队列先进先出；哈希到块的映射。",
            en="A first-in-first-out free list, and the map from hash to block.",
        ),
        at(
            "engine/block_manager:hash_block",
            "engine/block_manager:BlockManager.compute_hash",
            zh="链式哈希：包含前面所有块。",
            en="A chained hash: it covers every block before.",
        ),
        at(
            "engine/block_manager:BlockManager.cached_prefix",
            absent_from=("upstream",),
            zh="最后一块永不命中：总要算出一个位置的 logits。",
            en="The last block is never matched: one position must produce logits.",
        ),
        at(
            "engine/block_manager:BlockManager.can_allocate",
            zh="整个提示能否放下；返回命中的块数或 -1。",
            en="Whether the whole prompt fits; the number of hit blocks, or -1.",
        ),
        at(
            "engine/block_manager:BlockManager.allocate",
            zh="命中的块增加引用，其余取新块。",
            en="Hit blocks gain a reference, the rest are new.",
        ),
        at(
            "engine/block_manager:BlockManager.deallocate",
            zh="引用归零才空闲；内容和哈希保留。",
            en="Free at zero references; content and hash stay.",
        ),
        at(
            "engine/block_manager:BlockManager.can_append",
            zh="下一个位置是否有地方写。",
            en="Whether the next position has a place.",
        ),
        at(
            "engine/block_manager:BlockManager.may_append",
            zh="total % block_size == 1 时取一个新块。",
            en="Takes a block when total % block_size == 1.",
        ),
        at(
            "engine/block_manager:BlockManager.hash_blocks",
            zh="登记本步刚写满的块。",
            en="Registers the blocks this step has just filled.",
        ),
        at(
            "engine/block_manager:BlockManager._take_free_block",
            "engine/block_manager:BlockManager._allocate_block",
            zh="重新分配时才删除旧映射。",
            en="Only reallocation removes the old mapping.",
        ),
    ),
)

RUNNER = Topic(
    "runner",
    "From a batch to the device",
    (
        at(
            "engine/model_runner:ModelRunner.run",
            zh="准备输入、运行模型、得到每个序列一个候选。",
            en="Prepare inputs, run the model, one candidate per sequence.",
        ),
        at(
            "engine/input_builder:InputBuilder.prefill",
            "engine/model_runner:ModelRunner.prepare_prefill",
            zh="拼接 token；cu_seqlens 标边界；有历史时才带块表。",
            en="Concatenated ids, cu_seqlens as boundaries, tables only with history.",
        ),
        at(
            "engine/input_builder:InputBuilder.decode",
            "engine/model_runner:ModelRunner.prepare_decode",
            zh="每个序列一个 token：位置 total-1，context_len 为 total。",
            en="One id per sequence: position total-1, context length total.",
        ),
        at(
            "engine/input_builder:InputBuilder.slots",
            absent_from=("upstream",),
            zh="位置换算成槽：块号 × 块大小 + 块内偏移。",
            en="Position to slot: block number x block size + offset.",
        ),
        at(
            "engine/model_runner:ModelRunner.run_model",
            zh="重放一个 CUDA Graph，或逐核函数执行。",
            en="Replay a CUDA graph, or launch kernel by kernel.",
        ),
        at(
            "engine/model_runner:ModelRunner.allocate_kv_cache",
            zh="一次性预留整个 KV 池，并分给每一层。",
            en="Reserve the whole KV pool once and give each layer its slice.",
        ),
    ),
)

MODEL = Topic(
    "model",
    "Qwen3 layer by layer, and its weights",
    (
        at(
            "models/qwen3:Qwen3DecoderLayer.forward",
            zh="h = x + Attn(Norm1(x))，y = h + MLP(Norm2(h))，残差分开传递。",
            en="h = x + Attn(Norm1(x)), y = h + MLP(Norm2(h)); the residual travels apart.",
        ),
        at(
            "models/qwen3:Qwen3Attention.forward",
            zh="一次投影得到 Q、K、V，再归一化、旋转、注意力。",
            en="One projection gives Q, K, V; then norm, rotation, attention.",
        ),
        at(
            "layers/layernorm:RMSNorm.add_and_norm",
            "layers/layernorm:RMSNorm.add_rms_forward",
            zh="残差在归一化里相加。",
            en="The residual is added inside the norm.",
        ),
        at("models/qwen3:Qwen3MLP.forward", zh="gate 与 up 合成一次矩阵乘。", en="gate and up are one matrix product."),
        at(
            "models/qwen3:Qwen3ForCausalLM.compute_logits",
            zh="只有每个序列的最后一行进入输出头。",
            en="Only each sequence's last row enters the head.",
        ),
        at(
            "layers/linear:QKVParallelLinear",
            zh="打包权重的行区间：Q、K、V。",
            en="Row ranges of the packed weight: Q, K, V.",
        ),
        at(
            "models/qwen3:Qwen3ForCausalLM.packed_modules_mapping",
            zh="检查点里的名字对应到打包后的模块。",
            en="Names in the checkpoint, and the packed module each goes to.",
        ),
        at(
            "utils/loader:load_model",
            zh="逐个张量读入，并放到它的位置。",
            en="Reads tensor after tensor and puts each in its place.",
        ),
        at(
            "utils/loader:load_tensor",
            absent_from=("upstream",),
            zh="打包的行、一个 rank 的分片，或直接复制。",
            en="Packed rows, one rank's shard, or a plain copy.",
        ),
    ),
)

KERNELS = Topic(
    "kernels",
    "Attention, the cache, and CUDA graphs",
    (
        at(
            "layers/attention:Attention.forward",
            zh="先写入 K、V，再按阶段做注意力。",
            en="K and V are stored first, then the phase's attention runs.",
        ),
        at(
            "layers/kernels/kv_store:_store_kv_kernel",
            "layers/attention:store_kvcache_kernel",
            zh="槽为 -1 的行什么也不写：填充行因此安全。",
            en="A row with slot -1 writes nothing: that makes padded rows safe.",
        ),
        at(
            "layers/attention_flash_attn:FlashAttnBackend",
            absent_from=("upstream",),
            zh="flash-attn 的两个入口：变长 prefill，分页 decode。",
            en="flash-attn's two entries: variable-length prefill, paged decode.",
        ),
        at(
            "engine/cuda_graph:graph_sizes",
            absent_from=("upstream",),
            zh="捕获哪些批大小。",
            en="Which batch sizes are captured.",
        ),
        at(
            "engine/model_runner:ModelRunner.capture_graphs",
            "engine/model_runner:ModelRunner.capture_cudagraph",
            zh="从大到小捕获，共用一个内存池。",
            en="Captured from the largest down, sharing one memory pool.",
        ),
        at(
            "engine/cuda_graph:DecodeGraphs",
            absent_from=("upstream",),
            zh="一次捕获，多次重放；只有前几行有意义。",
            en="Captured once, replayed often; only the first rows mean anything.",
        ),
        at(
            "engine/model_runner:ModelRunner.run_model",
            zh="选择桶：不小于批大小的第一个。",
            en="The bucket: the first that is not smaller than the batch.",
        ),
    ),
)

TOPICS = {topic.name: topic for topic in (ENGINE, SCHEDULER, BLOCKS, RUNNER, MODEL, KERNELS)}
