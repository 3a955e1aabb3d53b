# B.5 Repair a missing bucket: a red run, the smallest change, routes, numbers, cost.
# The working copy leaves this page as it came to it: `revert` stands last.

# ---- before ---------------------------------------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:before]
source env.sh
mkdir -p runs
python scripts/e2e/patch.py status
python scripts/e2e/patch.py revert 02
git -C "$NANO_DIR" diff > runs/before-fallback.diff
# --8<-- [end:before]

# The same lookup, on CPU: what the engine's line does for each batch.
# tier: cpu
# needs: before
# prints: batch 17: StopIteration
# --8<-- [start:lookup]
source env.sh
python - <<'PY'
from nanolab import sources

graph_bs = sources.resolve().module("engine.cuda_graph").graph_sizes(20)
print(f"captured sizes: {graph_bs}")
for batch in (1, 9, 16, 17, 20):
    try:
        print(f"batch {batch}: {next(size for size in graph_bs if size >= batch)}")
    except StopIteration:
        print(f"batch {batch}: StopIteration")
PY
# --8<-- [end:lookup]

# tier: gpu reason=回放 CUDA Graph | replays CUDA graphs
# needs: before
# expect: 1
# prints: StopIteration
# --8<-- [start:red]
source env.sh
mkdir -p runs
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/logits_check.py collect --backend nano \
  --execution graph --suite graph --out runs/graph-red
# --8<-- [end:red]

# tier: gpu reason=回放 CUDA Graph | replays CUDA graphs
# block: graph-before
# needs: before
# prints: expected_failure=true
# prints: PASS
# --8<-- [start:reproduce]
source env.sh
set -o pipefail
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/logits_check.py collect --backend nano \
  --execution graph --suite graph --expect-uncovered --out runs/graph-before \
  2>&1 | tee runs/graph-before.log
# --8<-- [end:reproduce]

# tier: cpu
# needs: before
# expect: 4
# prints: needs a CUDA device
# prints: PENDING
# --8<-- [start:reproduce-on-cpu]
source env.sh
python scripts/e2e/logits_check.py collect --backend nano --execution graph \
  --suite graph --expect-uncovered --out runs/graph-before
# --8<-- [end:reproduce-on-cpu]

# tier: cpu
# needs: before
# prints: rows=126 of 126
# prints: COLLECTED
# --8<-- [start:eager-before]
source env.sh
python scripts/e2e/logits_check.py collect --backend nano --execution eager \
  --suite graph --out runs/graph-eager-before
# --8<-- [end:eager-before]

# ---- the repair -----------------------------------------------------------------------------------------------------

# tier: cpu
# needs: before
# --8<-- [start:read]
source env.sh
git -C "$NANO_DIR" apply --check "$LAB_ROOT/patches/02-graph-eager-fallback.patch"
cat "$LAB_ROOT/patches/02-graph-eager-fallback.patch"
# --8<-- [end:read]

# tier: cpu
# needs: before, eager-before
# prints: if size is None
# --8<-- [start:apply]
source env.sh
git -C "$NANO_DIR" apply "$LAB_ROOT/patches/02-graph-eager-fallback.patch"
git -C "$NANO_DIR" diff --check
git -C "$NANO_DIR" diff -- nanoengine/engine/model_runner.py | tee runs/graph-fallback.diff
# --8<-- [end:apply]

# ---- proof ----------------------------------------------------------------------------------------------------------

# tier: cpu
# block: graph-eager-unchanged
# needs: apply
# prints: PASS
# --8<-- [start:eager-unchanged]
source env.sh
python scripts/e2e/logits_check.py collect --backend nano --execution eager \
  --suite graph --out runs/graph-eager-after
python scripts/e2e/logits_check.py compare --lhs runs/graph-eager-after \
  --rhs runs/graph-eager-before --max-abs 0.5 --rel-l2 0.02 --kv-max-abs 0.1 \
  --out runs/graph-eager-unchanged.json
# --8<-- [end:eager-unchanged]

# tier: gpu reason=回放 CUDA Graph | replays CUDA graphs
# block: graph-eager, graph-patched
# needs: apply
# prints: COLLECTED
# --8<-- [start:collect]
source env.sh
set -o pipefail
export CUDA_VISIBLE_DEVICES=0
python scripts/e2e/logits_check.py collect --backend nano --execution eager \
  --suite graph --out runs/graph-eager 2>&1 | tee runs/graph-eager.log
python scripts/e2e/logits_check.py collect --backend nano --execution graph \
  --suite graph --out runs/graph-patched 2>&1 | tee runs/graph-patched.log
# --8<-- [end:collect]

# tier: gpu reason=比较上面两次 GPU 采集 | compares the two collections made on the GPU
# block: graph-fallback-check
# needs: collect
# --8<-- [start:check]
source env.sh
python scripts/e2e/logits_check.py compare --lhs runs/graph-patched --rhs runs/graph-eager \
  --max-abs 0.5 --rel-l2 0.02 --kv-max-abs 0.1 --out runs/graph-fallback-check.json \
  || test $? -eq 3
# --8<-- [end:check]

# tier: gpu reason=读上面那次比较的结果块 | reads the block of the comparison above
# needs: check
# --8<-- [start:look]
source env.sh
python - <<'PY'
import json
from pathlib import Path

block = json.loads(Path("runs/graph-fallback-check.json").read_text())
for row in block["result"]["table"]:
    if not row["within"]:
        print(f"{row['row']}: max_abs {row['max_abs']:.3g}, rel_l2 {row['rel_l2']:.3g}, "
              f"same top-1 {row['top1_equal']}, lead of the reference's first {row['margin']:.3g}")
print(block["check"])
PY
# --8<-- [end:look]

# ---- the cost -------------------------------------------------------------------------------------------------------

# tier: gpu reason=回放 CUDA Graph | replays CUDA graphs
# block: graph-fallback-performance
# needs: apply
# prints: PASS
# --8<-- [start:cost]
source env.sh
set -o pipefail
export CUDA_VISIBLE_DEVICES=0
python scripts/labs/04_benchmark_engine.py --eager --seqs 17 --max-num-seqs 20 \
  2>&1 | tee runs/graph-fallback-eager.log
python scripts/labs/04_benchmark_engine.py --seqs 17 --max-num-seqs 20 \
  2>&1 | tee runs/graph-fallback-replay.log
python scripts/e2e/analyze.py compare --variable eager --log runs/graph-fallback-eager.log \
  --other runs/graph-fallback-replay.log --out runs/graph-fallback-performance.json
# --8<-- [end:cost]

# tier: cpu
# needs: apply, eager-unchanged
# prints: 02-graph-eager-fallback
# --8<-- [start:revert]
source env.sh
git -C "$NANO_DIR" apply --reverse --check "$LAB_ROOT/patches/02-graph-eager-fallback.patch"
git -C "$NANO_DIR" apply --reverse "$LAB_ROOT/patches/02-graph-eager-fallback.patch"
python scripts/e2e/patch.py status
# --8<-- [end:revert]
