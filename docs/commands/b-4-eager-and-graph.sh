# B.4 Eager and CUDA graph: the running maximum by hand, the buckets, one setting changed.
# Graphs need a CUDA device. On CPU the same commands end PENDING (exit code 4), and the page says so.

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: DecodeGraphs
# --8<-- [start:kernels-source]
source env.sh
mkdir -p runs
python scripts/e2e/source_walk.py kernels --allow-modified > runs/cuda-graph-source.txt
cat runs/cuda-graph-source.txt
# --8<-- [end:kernels-source]

# FlashAttention's three running values, one query and two tiles, against the softmax of all four scores at once.
# tier: cpu
# prints: tile 2: m=3 l=1.553 u=40.702
# prints: u / l = 26.209, all at once 26.209
# --8<-- [start:running-max]
source env.sh
python - <<'PY'
from math import exp

import numpy as np
from nanolab.principles.sampling import softmax

tiles = [([1, 2], [10, 20]), ([3, 0], [30, 40])]  # scores and values of one query
m, l, u = float("-inf"), 0.0, 0.0
for number, (scores, values) in enumerate(tiles, 1):
    largest = max(m, *scores)
    shrink = exp(m - largest)
    weights = [exp(score - largest) for score in scores]
    m, l = largest, l * shrink + sum(weights)
    u = u * shrink + sum(w * v for w, v in zip(weights, values))
    print(f"tile {number}: m={m} l={l:.3f} u={u:.3f}")
together = softmax([1, 2, 3, 0]) @ np.array([10, 20, 30, 40])
print(f"u / l = {u / l:.3f}, all at once {together:.3f}")
PY
# --8<-- [end:running-max]

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: batch 9 -> bucket 16, 7 padded rows
# --8<-- [start:buckets]
source env.sh
python - <<'PY'
from nanolab import sources

graph_sizes = sources.resolve().module("engine.cuda_graph").graph_sizes
for max_num_seqs in (32, 20):
    sizes = graph_sizes(max_num_seqs)
    print(f"max_num_seqs {max_num_seqs}: {sizes}")
    for batch in (1, 9, 16, 17):
        size = next((size for size in sizes if size >= batch), None)
        padded = f"bucket {size}, {size - batch} padded rows" if size else "no bucket"
        print(f"  batch {batch} -> {padded}")
PY
# --8<-- [end:buckets]

# tier: gpu reason=驱动上游引擎，它只能在 CUDA 上跑 | drives upstream, which runs on CUDA only
# block: benchmark-upstream-gpu
# needs: 5-1-setup:enter
# --8<-- [start:upstream]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/labs/04_benchmark_engine.py --source nano-vllm \
  --seqs 16 --max-num-seqs 32 --input-len 128 --output-len 32 --repeats 3 --out runs/benchmark-upstream-gpu.json
# --8<-- [end:upstream]

# tier: gpu reason=回放 CUDA Graph | replays CUDA graphs
# needs: 5-1-setup:working-copy
# prints: COLLECTED
# --8<-- [start:eager]
source env.sh
mkdir -p runs
CUDA_VISIBLE_DEVICES=0 python scripts/labs/04_benchmark_engine.py --eager \
  --seqs 16 --max-num-seqs 32 --input-len 128 --output-len 32 --repeats 3 \
  2>&1 | tee runs/cuda-graph-eager.log
# --8<-- [end:eager]

# tier: gpu reason=回放 CUDA Graph | replays CUDA graphs
# needs: 5-1-setup:working-copy
# prints: COLLECTED
# --8<-- [start:replay]
source env.sh
mkdir -p runs
CUDA_VISIBLE_DEVICES=0 python scripts/labs/04_benchmark_engine.py \
  --seqs 16 --max-num-seqs 32 --input-len 128 --output-len 32 --repeats 3 \
  2>&1 | tee runs/cuda-graph-replay.log
# --8<-- [end:replay]

# tier: gpu reason=比较上面两份 GPU 日志 | compares the two logs made on the GPU
# block: cuda-graph-comparison
# needs: eager, replay
# prints: PASS
# --8<-- [start:compare]
source env.sh
python scripts/e2e/analyze.py compare --variable eager --log runs/cuda-graph-eager.log \
  --other runs/cuda-graph-replay.log --out runs/cuda-graph-comparison.json
# --8<-- [end:compare]

# On CPU both runs are eager, so there is nothing to compare; the last command says PENDING.
# tier: cpu
# needs: 5-1-setup:working-copy
# expect: 4
# prints: both runs were eager
# prints: PENDING
# --8<-- [start:on-cpu]
source env.sh
mkdir -p runs
for mode in --eager ""; do
  python scripts/labs/04_benchmark_engine.py $mode --seqs 4 --max-num-seqs 32 \
    --input-len 128 --output-len 8 --repeats 1 > "runs/cuda-graph-cpu$mode.log" 2>&1
done
python scripts/e2e/analyze.py compare --variable eager --log runs/cuda-graph-cpu--eager.log \
  --other runs/cuda-graph-cpu.log
# --8<-- [end:on-cpu]
