# B.2 Reading the logs: a life, a cut prompt, a preemption, an address.
# Every section drives the working copy of 5.1.3, patched or not: hence --allow-modified where source is read.

# ---- B.2.1 lifecycle ------------------------------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: Scheduler.postprocess
# --8<-- [start:lifecycle-source]
source env.sh
mkdir -p runs
python scripts/e2e/source_walk.py engine --allow-modified > runs/lifecycle-source.txt
cat runs/lifecycle-source.txt
# --8<-- [end:lifecycle-source]

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: COLLECTED
# --8<-- [start:lifecycle]
source env.sh
mkdir -p runs
python scripts/labs/03_trace_engine.py --case lifecycle 2>&1 \
  | tee runs/lifecycle.log | cut -c 1-150
# --8<-- [end:lifecycle]

# tier: cpu
# needs: lifecycle
# prints: "total":65
# --8<-- [start:follow-one]
source env.sh
grep -oE '"event":"[a-z_]+","step":[0-9]+|\{"request":"A"[^}]*\}' runs/lifecycle.log
# --8<-- [end:follow-one]

# tier: cpu
# block: lifecycle-check
# needs: lifecycle
# prints: PASS
# --8<-- [start:lifecycle-check]
source env.sh
python scripts/e2e/analyze.py lifecycle --log runs/lifecycle.log \
  --out runs/lifecycle-check.json
# --8<-- [end:lifecycle-check]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: lifecycle-check-gpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:lifecycle-on-gpu]
source env.sh
mkdir -p runs
CUDA_VISIBLE_DEVICES=0 python scripts/labs/03_trace_engine.py --case lifecycle 2>&1 \
  | tee runs/lifecycle-gpu.log | cut -c 1-150
python scripts/e2e/analyze.py lifecycle --log runs/lifecycle-gpu.log \
  --out runs/lifecycle-check-gpu.json
# --8<-- [end:lifecycle-on-gpu]

# ---- B.2.2 chunked prefill and preemption ---------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: Scheduler.preempt
# --8<-- [start:scheduler-source]
source env.sh
mkdir -p runs
python scripts/e2e/source_walk.py scheduler --allow-modified > runs/scheduler-source.txt
cat runs/scheduler-source.txt
# --8<-- [end:scheduler-source]

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: COLLECTED
# --8<-- [start:chunk]
source env.sh
mkdir -p runs
python scripts/labs/03_trace_engine.py --case chunk 2>&1 \
  | tee runs/chunked-prefill.log | cut -c 1-150
# --8<-- [end:chunk]

# tier: cpu
# block: scheduler-check
# needs: chunk
# prints: PASS
# --8<-- [start:chunk-check]
source env.sh
python scripts/e2e/analyze.py chunk --log runs/chunked-prefill.log \
  --out runs/scheduler-check.json
# --8<-- [end:chunk-check]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: scheduler-check-gpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:chunk-on-gpu]
source env.sh
mkdir -p runs
CUDA_VISIBLE_DEVICES=0 python scripts/labs/03_trace_engine.py --case chunk 2>&1 \
  | tee runs/chunked-prefill-gpu.log | cut -c 1-150
python scripts/e2e/analyze.py chunk --log runs/chunked-prefill-gpu.log \
  --out runs/scheduler-check-gpu.json
# --8<-- [end:chunk-on-gpu]

# tier: cpu
# block: scheduler-preemption
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:preempt]
source env.sh
mkdir -p runs
python scripts/e2e/cpu_scheduler.py preempt --out runs/scheduler-preemption.json
# --8<-- [end:preempt]

# The answer of the exercise: the same three prompts on larger pools.
# tier: cpu
# needs: 5-1-setup:working-copy
# prints: 6 blocks: prefilled again []
# --8<-- [start:preempt-exercise]
source env.sh
python - <<'PY'
from nanolab import sources
from nanolab.cases.scheduling import Engine, SchedulerBench

engine = Engine.of(sources.resolve())
for blocks in (4, 5, 6):
    bench = SchedulerBench(
        engine, block_size=4, num_blocks=blocks, max_num_batched_tokens=64, max_num_seqs=8
    )
    for name in "ABC":
        bench.add(name, [ord(name)] * 4, max_tokens=3)
    steps = bench.run()
    again = [list(step.before) for step in steps[1:] if step.phase == "prefill"]
    print(f"{blocks} blocks: prefilled again {again}, {len(steps)} steps")
PY
# --8<-- [end:preempt-exercise]

# ---- B.2.3 from position to slot ------------------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: BlockManager.may_append
# --8<-- [start:pages-source]
source env.sh
mkdir -p runs
python scripts/e2e/source_walk.py blocks --allow-modified > runs/kv-pages-source.txt
cat runs/kv-pages-source.txt
# --8<-- [end:pages-source]

# tier: cpu
# block: kv-slots
# prints: PASS
# --8<-- [start:slots]
source env.sh
mkdir -p runs
python scripts/e2e/principles.py slots --out runs/kv-slots.json
# --8<-- [end:slots]

# tier: cpu
# block: kv-slots-runtime
# needs: chunk
# prints: PASS
# --8<-- [start:slots-runtime]
source env.sh
python scripts/e2e/analyze.py slots --log runs/chunked-prefill.log \
  --out runs/kv-slots-runtime.json
# --8<-- [end:slots-runtime]

# tier: gpu reason=检查上面那份 GPU 日志 | checks the log made on the GPU
# block: kv-slots-runtime-gpu
# needs: chunk-on-gpu
# prints: PASS
# --8<-- [start:slots-runtime-on-gpu]
source env.sh
python scripts/e2e/analyze.py slots --log runs/chunked-prefill-gpu.log \
  --out runs/kv-slots-runtime-gpu.json
# --8<-- [end:slots-runtime-on-gpu]
