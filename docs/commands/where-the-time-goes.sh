# Where the time goes: two floors by arithmetic, then three benchmarks, from the whole engine down to one kernel.

# tier: cpu
# prints: weights, read once a step: 1191.97 MB
# prints: KV of one token: 114688 B
# --8<-- [start:floors]
source env.sh
python - <<'PY'
layers, hidden, inner, heads, kv_heads, head_dim, vocabulary = 28, 1024, 3072, 16, 8, 128, 151936
attention = hidden * head_dim * (2 * heads + 2 * kv_heads)  # Q and O; K and V
weights = 2 * (layers * (attention + 3 * hidden * inner) + vocabulary * hidden)
kv = 2 * 2 * layers * kv_heads * head_dim
print(f"weights, read once a step: {weights / 1e6:.2f} MB")
print(f"KV of one token: {kv} B")
for sequences, context in ((1, 256), (16, 160), (256, 1100)):
    read = weights + sequences * context * kv
    milliseconds = read / 4e12 * 1e3  # at 4 TB/s
    print(f"{sequences:3} x {context:4}: {read / 1e9:5.2f} GB, {milliseconds:.2f} ms, KV {1 - weights / read:.0%}")
PY
# --8<-- [end:floors]

# tier: gpu reason=同一张 GPU 上先后跑两个引擎 | runs two engines on one GPU, one after the other
# block: bench-engines
# timeout: 600
# --8<-- [start:engines]
source env.sh
python scripts/maintain/bench_engines.py --against nano-vllm --out runs/bench-engines.json
# --8<-- [end:engines]

# tier: gpu reason=回放 CUDA Graph，量 GPU 自己的时间 | replays CUDA graphs and takes the GPU's own time
# block: bench-step-gpu
# --8<-- [start:step]
source env.sh
python scripts/maintain/bench_step.py --out runs/bench-step-gpu.json
# --8<-- [end:step]

# tier: cpu
# needs: 5-1-setup:enter
# prints: COLLECTED
# --8<-- [start:step-cpu]
source env.sh
python scripts/maintain/bench_step.py --quick --steps 5 --out runs/bench-step.json
# --8<-- [end:step-cpu]

# tier: gpu reason=逐个 kernel 计时 | times the kernels one by one
# block: bench-kernels-gpu
# timeout: 300
# --8<-- [start:kernels]
source env.sh
python scripts/maintain/bench_kernels.py --out runs/bench-kernels-gpu.json
# --8<-- [end:kernels]
