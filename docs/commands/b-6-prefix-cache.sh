# B.6 Prefix cache: a hit on the real engine, its reference counts, and when there is none.

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: COLLECTED
# --8<-- [start:trace]
source env.sh
mkdir -p runs
python scripts/labs/03_trace_engine.py --case prefix 2>&1 \
  | tee runs/prefix-cache.log | cut -c 1-150
# --8<-- [end:trace]

# tier: cpu
# block: prefix-cache-check
# needs: trace
# prints: PASS
# --8<-- [start:check]
source env.sh
python scripts/e2e/analyze.py prefix --log runs/prefix-cache.log \
  --out runs/prefix-cache-check.json
# --8<-- [end:check]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: prefix-cache-check-gpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:check-on-gpu]
source env.sh
mkdir -p runs
CUDA_VISIBLE_DEVICES=0 python scripts/labs/03_trace_engine.py --case prefix 2>&1 \
  | tee runs/prefix-cache-gpu.log | cut -c 1-150
python scripts/e2e/analyze.py prefix --log runs/prefix-cache-gpu.log \
  --out runs/prefix-cache-check-gpu.json
# --8<-- [end:check-on-gpu]

# tier: cpu
# block: prefix-cache-refs
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:refs]
source env.sh
mkdir -p runs
python scripts/e2e/cpu_scheduler.py refs --out runs/prefix-cache-refs.json
# --8<-- [end:refs]

# Two requests with a common prefix, added together: one round for both, or a budget that parts them.
# tier: cpu
# needs: 5-1-setup:working-copy
# prints: budget 2048: B total/cached/scheduled [620, 0, 620]
# prints: budget 512: B total/cached/scheduled [620, 512, 108]
# --8<-- [start:together]
source env.sh
python - <<'PY'
from nanolab import sources
from nanolab.cases.scheduling import Engine, SchedulerBench

engine = Engine.of(sources.resolve())
shared = list(range(512))
for budget in (2048, 512):
    bench = SchedulerBench(
        engine, block_size=256, num_blocks=16, max_num_batched_tokens=budget, max_num_seqs=2
    )
    bench.add("A", shared + list(range(1000, 1108)), max_tokens=2)
    bench.add("B", shared + list(range(2000, 2108)), max_tokens=2)
    first = next(step for step in bench.run() if "B" in step.before)
    print(f"budget {budget}: B total/cached/scheduled {first.before['B']}, tables {first.blocks}")
PY
# --8<-- [end:together]

# The answer of the exercise: what a block's next owner does to its old hash.
# tier: cpu
# needs: 5-1-setup:working-copy
# prints: 8 blocks: B finds 0 blocks
# --8<-- [start:evict]
source env.sh
python - <<'PY'
from nanolab import sources
from nanolab.cases.scheduling import Engine, SchedulerBench

engine = Engine.of(sources.resolve())
shared = list(range(512))
for blocks in (16, 8):
    bench = SchedulerBench(
        engine, block_size=256, num_blocks=blocks, max_num_batched_tokens=4096, max_num_seqs=2
    )
    bench.add("A", shared + list(range(1000, 1108)), max_tokens=1)
    bench.run()
    bench.add("other", range(5000, 6900), max_tokens=1)
    bench.run()
    seq = bench.add("B", shared + list(range(2000, 2108)), max_tokens=1)
    print(f"{blocks} blocks: B finds {bench.manager.can_allocate(seq)} blocks")
PY
# --8<-- [end:evict]
