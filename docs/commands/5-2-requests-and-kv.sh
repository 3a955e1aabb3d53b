# 5.2 Follow requests and KV: four fixed cases, one observing patch, one numeric guardrail.
# Every section drives the working copy of 5.1.3. GPU blocks carry the suffix -gpu.

# ---- 5.2.1 case A ---------------------------------------------------------------------------------------------------

# tier: cpu
# block: quick-A
# needs: 5-1-setup:working-copy
# prints: PASS
# prints: 3/0/3
# --8<-- [start:case-a]
source env.sh
python scripts/e2e/quick_walk.py --case A --trace --out runs/quick-A.json
# --8<-- [end:case-a]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: quick-A-gpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:case-a-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/quick_walk.py --case A --trace --out runs/quick-A-gpu.json
# --8<-- [end:case-a-gpu]

# The same stops as the interactive session, fed through a pipe: CI proves that every breakpoint resolves.
# tier: cpu
# needs: 5-1-setup:working-copy
# prints: RUNNING, 3/0/3
# prints: RUNNING, 4/3/0
# prints: FINISHED, 6/0/0
# --8<-- [start:case-a-pdb]
source env.sh
python scripts/e2e/quick_walk.py --case A --debug <<'PDB'
b engine_module.ModelRunner.run
b engine_module.Scheduler.postprocess
c
p is_prefill, seqs
c
p token_ids, seqs[0].num_tokens
r
p seqs
c
p is_prefill, seqs
c
r
p seqs
c
p is_prefill, seqs
c
p token_ids, seqs[0].num_tokens
r
p seqs
clear 1 2
c
PDB
# --8<-- [end:case-a-pdb]

# ---- 5.2.2 case B ---------------------------------------------------------------------------------------------------

# tier: cpu
# block: quick-B
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:case-b]
source env.sh
python scripts/e2e/quick_walk.py --case B --trace --out runs/quick-B.json
# --8<-- [end:case-b]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: quick-B-gpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:case-b-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/quick_walk.py --case B --trace --out runs/quick-B-gpu.json
# --8<-- [end:case-b-gpu]

# tier: cpu
# block: quick-B-one
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:case-b-one]
source env.sh
python scripts/e2e/quick_walk.py --case B --max-num-seqs 1 --trace --out runs/quick-B-one.json
# --8<-- [end:case-b-one]

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: ['FINISHED', 'RUNNING']
# --8<-- [start:case-b-pdb]
source env.sh
python scripts/e2e/quick_walk.py --case B --debug <<'PDB'
b engine_module.Scheduler.postprocess, not is_prefill
c
r
p [seq.status.name for seq in seqs]
p len(self.running), len(self.waiting), len(self.block_manager.free_block_ids)
clear 1
c
PDB
# --8<-- [end:case-b-pdb]

# ---- 5.2.3 case C ---------------------------------------------------------------------------------------------------

# tier: cpu
# block: quick-C
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:case-c]
source env.sh
python scripts/e2e/quick_walk.py --case C --trace --out runs/quick-C.json
# --8<-- [end:case-c]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: quick-C-gpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:case-c-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/quick_walk.py --case C --trace --out runs/quick-C-gpu.json
# --8<-- [end:case-c-gpu]

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: (257, 256, 2, 1)
# prints: (257, 256, 2, 2)
# --8<-- [start:case-c-pdb]
source env.sh
python scripts/e2e/quick_walk.py --case C --debug <<'PDB'
b driver.engine.scheduler.block_manager.may_append
c
p seq.num_tokens, seq.num_cached_tokens, seq.num_blocks, len(seq.block_table)
r
p seq.num_tokens, seq.num_cached_tokens, seq.num_blocks, len(seq.block_table)
clear 1
c
PDB
# --8<-- [end:case-c-pdb]

# ---- 5.2.4 case D ---------------------------------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# --8<-- [start:patch-read]
source env.sh
git -C "$NANO_DIR" status --short
git -C "$NANO_DIR" diff
cat patches/01-step-trace.patch
# --8<-- [end:patch-read]

# tier: cpu
# needs: 5-1-setup:working-copy
# --8<-- [start:patch-apply]
source env.sh
git -C "$NANO_DIR" apply --check "$LAB_ROOT/patches/01-step-trace.patch"
git -C "$NANO_DIR" apply "$LAB_ROOT/patches/01-step-trace.patch"
git -C "$NANO_DIR" diff --stat
# --8<-- [end:patch-apply]

# tier: cpu
# block: modified-A
# needs: patch-apply
# prints: engine_step
# prints: PASS
# --8<-- [start:modified-a]
source env.sh
NANO_LAB_TRACE=1 python scripts/e2e/quick_walk.py --case A --out runs/modified-A.json 2>&1 |
  tee runs/modified-A.log
grep -c '"event": "engine_step"' runs/modified-A.log
# --8<-- [end:modified-a]

# tier: cpu
# block: budget512
# needs: patch-apply
# prints: PASS
# --8<-- [start:budget-512]
source env.sh
NANO_LAB_TRACE=1 python scripts/e2e/quick_walk.py --case D --budget 512 --out runs/budget512.json 2>&1 |
  tee runs/budget512.log
# --8<-- [end:budget-512]

# tier: cpu
# block: budget256
# needs: patch-apply
# prints: PASS
# --8<-- [start:budget-256]
source env.sh
NANO_LAB_TRACE=1 python scripts/e2e/quick_walk.py --case D --budget 256 --out runs/budget256.json 2>&1 |
  tee runs/budget256.log
# --8<-- [end:budget-256]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: budget512-gpu, budget256-gpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:budget-gpu]
source env.sh
export CUDA_VISIBLE_DEVICES=0 NANO_LAB_TRACE=1
for budget in 512 256; do
  python scripts/e2e/quick_walk.py --case D --budget $budget --out runs/budget$budget-gpu.json 2>&1 |
    tee runs/budget$budget-gpu.log
done
unset NANO_LAB_TRACE
# --8<-- [end:budget-gpu]

# tier: cpu
# block: budget-cpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:budget-cpu]
source env.sh
python scripts/e2e/check_budget_cpu.py --out runs/budget-cpu.json
# --8<-- [end:budget-cpu]

# A kept patch is a change, and verify says so with exit code 1.
# tier: cpu
# needs: patch-apply
# expect: 1
# --8<-- [start:patch-kept]
source env.sh
python scripts/e2e/source_walk.py verify
# --8<-- [end:patch-kept]

# tier: cpu
# needs: patch-apply
# prints: SOURCE PASS
# --8<-- [start:patch-revert]
source env.sh
git -C "$NANO_DIR" apply --reverse --check "$LAB_ROOT/patches/01-step-trace.patch"
git -C "$NANO_DIR" apply --reverse "$LAB_ROOT/patches/01-step-trace.patch"
git -C "$NANO_DIR" status --short
unset NANO_LAB_TRACE
python scripts/e2e/source_walk.py verify
# --8<-- [end:patch-revert]

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: COLLECTED
# --8<-- [start:budget-exercise]
source env.sh
for budget in 732 731 366 365; do
  echo "budget $budget"
  python scripts/e2e/quick_walk.py --case D --budget $budget --trace 2>/dev/null
done
# --8<-- [end:budget-exercise]

# ---- 5.2.5 logits against Transformers ------------------------------------------------------------------------------

# tier: cpu
# block: engine-nano
# needs: 5-1-setup:working-copy
# prints: COLLECTED
# --8<-- [start:collect-nano]
source env.sh
python scripts/e2e/logits_check.py collect --backend nano --dtype float32 --out runs/engine-nano 2>&1 |
  tee runs/engine-nano.log
# --8<-- [end:collect-nano]

# tier: cpu
# block: engine-hf
# needs: 5-1-setup:enter
# prints: COLLECTED
# --8<-- [start:collect-hf]
source env.sh
python scripts/e2e/logits_check.py collect --backend hf --dtype float32 --out runs/engine-hf 2>&1 |
  tee runs/engine-hf.log
# --8<-- [end:collect-hf]

# tier: cpu
# block: engine-logits-check
# needs: collect-nano, collect-hf
# prints: PASS
# --8<-- [start:compare]
source env.sh
python scripts/e2e/logits_check.py compare --lhs runs/engine-nano --rhs runs/engine-hf \
  --max-abs 0.001 --rel-l2 0.0001 --out runs/engine-logits-check.json
# --8<-- [end:compare]

# tier: gpu reason=bfloat16 与 GPU 上的注意力实现 | bfloat16, and attention as the GPU computes it
# block: engine-nano-gpu
# needs: 5-1-setup:working-copy
# prints: COLLECTED
# --8<-- [start:collect-nano-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/logits_check.py collect --backend nano --execution eager \
  --out runs/engine-nano-gpu 2>&1 |
  tee runs/engine-nano-gpu.log
# --8<-- [end:collect-nano-gpu]

# tier: gpu reason=bfloat16 与 GPU 上的注意力实现 | bfloat16, and attention as the GPU computes it
# block: engine-hf-gpu
# needs: 5-1-setup:enter
# prints: COLLECTED
# --8<-- [start:collect-hf-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/logits_check.py collect --backend hf --out runs/engine-hf-gpu 2>&1 |
  tee runs/engine-hf-gpu.log
# --8<-- [end:collect-hf-gpu]

# tier: gpu reason=比较上面两次 GPU 采集 | compares the two collections made on the GPU
# block: engine-logits-check-gpu
# needs: collect-nano-gpu, collect-hf-gpu
# --8<-- [start:compare-gpu]
source env.sh
python scripts/e2e/logits_check.py compare --lhs runs/engine-nano-gpu --rhs runs/engine-hf-gpu \
  --max-abs 0.5 --rel-l2 0.02 --out runs/engine-logits-check-gpu.json
# --8<-- [end:compare-gpu]

# tier: gpu reason=驱动上游引擎，它只能在 CUDA 上跑 | drives upstream, which runs on CUDA only
# block: engine-upstream-gpu, engine-logits-check-upstream-gpu
# needs: collect-hf-gpu
# --8<-- [start:upstream-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/logits_check.py collect --backend nano --execution eager \
  --source nano-vllm --out runs/engine-upstream-gpu
python scripts/e2e/logits_check.py compare --lhs runs/engine-upstream-gpu --rhs runs/engine-hf-gpu \
  --max-abs 0.5 --rel-l2 0.02 --out runs/engine-logits-check-upstream-gpu.json
# --8<-- [end:upstream-gpu]

# tier: cpu
# block: engine-nano-bf16, engine-hf-bf16, engine-logits-check-bf16
# needs: 5-1-setup:working-copy
# timeout: 600
# --8<-- [start:bf16]
source env.sh
python scripts/e2e/logits_check.py collect --backend nano --dtype bfloat16 --out runs/engine-nano-bf16
python scripts/e2e/logits_check.py collect --backend hf --dtype bfloat16 --out runs/engine-hf-bf16
python scripts/e2e/logits_check.py compare --lhs runs/engine-nano-bf16 --rhs runs/engine-hf-bf16 \
  --max-abs 0.5 --rel-l2 0.02 --out runs/engine-logits-check-bf16.json
# --8<-- [end:bf16]

# The limits of float32 on rows of bfloat16: REVIEW by construction, to practise on.
# tier: cpu
# block: engine-logits-check-tight
# needs: bf16
# expect: 3
# prints: REVIEW
# --8<-- [start:tight]
source env.sh
python scripts/e2e/logits_check.py compare --lhs runs/engine-nano-bf16 --rhs runs/engine-hf-bf16 \
  --max-abs 0.001 --rel-l2 0.0001 --out runs/engine-logits-check-tight.json
# --8<-- [end:tight]

# How far apart are the two best candidates of each row, beside how far apart the two sides are?
# tier: cpu
# needs: bf16
# --8<-- [start:margins]
source env.sh
python - <<'PY'
import json

for row in json.load(open("runs/engine-logits-check-bf16.json"))["result"]["table"]:
    print(f"{row['row']:28} margin {row['margin']:6.3f}  max_abs {row['max_abs']:.3f}  same top-1: {row['top1_equal']}")
PY
# --8<-- [end:margins]

# A fault planted in a copy of the working copy: a decode round that hides the newest position from attention.
# tier: cpu
# needs: 5-1-setup:working-copy
# prints: total - 1
# --8<-- [start:plant]
source env.sh
cp -r "$NANO_DIR" runs/faulty-engine
sed -i 's/\["context_lens"\]\[:count\] = total$/["context_lens"][:count] = total - 1/' \
  runs/faulty-engine/nanoengine/engine/input_builder.py
git -C runs/faulty-engine diff
# --8<-- [end:plant]

# tier: cpu
# block: faulty-logits-check
# needs: plant, collect-hf
# expect: 3
# prints: REVIEW
# --8<-- [start:catch]
source env.sh
python scripts/e2e/logits_check.py collect --backend nano --dtype float32 \
  --source runs/faulty-engine --out runs/faulty-nano
python scripts/e2e/logits_check.py compare --lhs runs/faulty-nano --rhs runs/engine-hf \
  --max-abs 0.001 --rel-l2 0.0001 --out runs/faulty-logits-check.json
# --8<-- [end:catch]
