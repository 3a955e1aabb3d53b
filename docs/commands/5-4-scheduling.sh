# 5.4 The first scheduling change: find the wait, read and apply patch 03, replay one arrival file under both policies.
# A result of the GPU route is called ID-gpu.

# ---- 5.4.1 where the wait is ----------------------------------------------------------------------------------------

# tier: cpu
# needs: 5-3-service:rounds
# prints: r0000
# --8<-- [start:gaps]
source env.sh
python - runs/prefill-first-rounds.jsonl <<'PY'
import sys
from itertools import groupby, pairwise
from pathlib import Path
from nanolab.serving.eventlog import read_log
from nanolab.serving.events import Step, Token

log = read_log(Path(sys.argv[1]))
steps = list(log.of(Step))
tokens = {}
for event in log.of(Token):
    if event.request_id not in log.header.warmup:
        tokens.setdefault(event.request_id, []).append(event)
for who, found in tokens.items():
    before, after = max(pairwise(found), key=lambda pair: pair[1].round - pair[0].round)
    between = [step.phase[0].upper() for step in steps if before.round < step.round < after.round]
    shown = " ".join(f"{phase}x{len(list(run))}" for phase, run in groupby(between))
    print(f"{who}: token {before.index} to {after.index}, {after.round - before.round} rounds; between: {shown or '-'}")
PY
# --8<-- [end:gaps]

# ---- 5.4.2 patch 03 -------------------------------------------------------------------------------------------------

# The acceptance before the patch: red, and it names the patch.
# tier: cpu
# needs: 5-1-setup:working-copy
# expect: 2
# prints: 03-fair-scheduler
# --8<-- [start:before]
source env.sh
python scripts/e2e/scheduler_practice.py --out runs/scheduler-cpu.json
# --8<-- [end:before]

# tier: cpu
# needs: 5-1-setup:working-copy
# --8<-- [start:patch-read]
source env.sh
python scripts/e2e/patch.py status
git -C "$NANO_DIR" status --short
cat patches/03-fair-scheduler.patch
# --8<-- [end:patch-read]

# tier: cpu
# needs: before
# prints: 03-fair-scheduler            applied
# --8<-- [start:patch-apply]
source env.sh
git -C "$NANO_DIR" apply --check "$LAB_ROOT/patches/03-fair-scheduler.patch"
git -C "$NANO_DIR" apply "$LAB_ROOT/patches/03-fair-scheduler.patch"
git -C "$NANO_DIR" diff --stat
python scripts/e2e/patch.py status
# --8<-- [end:patch-apply]

# tier: cpu
# block: scheduler-cpu
# needs: patch-apply
# prints: PASS
# --8<-- [start:scheduler-cpu]
source env.sh
python scripts/e2e/scheduler_practice.py --out runs/scheduler-cpu.json
# --8<-- [end:scheduler-cpu]

# ---- 5.4.3 one arrival file, two policies ---------------------------------------------------------------------------

# tier: cpu
# block: scheduler-rounds
# needs: patch-apply, 5-3-service:trace
# timeout: 900
# --8<-- [start:rounds]
source env.sh
for policy in prefill_first balanced; do
  python scripts/practice/run.py load --trace workloads/mixed.jsonl --mode round --policy $policy --out runs/rounds-$policy.jsonl
done
python scripts/practice/run.py report --inputs runs/rounds-prefill_first.jsonl,runs/rounds-balanced.jsonl \
  --out runs/scheduler-rounds.json
# --8<-- [end:rounds]

# tier: cpu
# block: scheduler-comparison
# needs: patch-apply, 5-3-service:trace
# timeout: 1800
# --8<-- [start:compare]
source env.sh
logs=""
for policy in prefill_first balanced; do
  for run in "" -2 -3; do
    python scripts/practice/run.py load --trace workloads/mixed.jsonl --mode wall --warmup-requests 2 --policy $policy \
      --out runs/scheduler-$policy$run.jsonl || test $? -eq 3
    logs="$logs,runs/scheduler-$policy$run.jsonl"
  done
done
python scripts/practice/run.py report --inputs "${logs#,}" --out runs/scheduler-comparison.json || test $? -eq 3
# --8<-- [end:compare]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: scheduler-comparison-gpu
# needs: patch-apply, 5-3-service:trace
# timeout: 600
# --8<-- [start:compare-gpu]
source env.sh
export CUDA_VISIBLE_DEVICES=0
logs=""
for policy in prefill_first balanced; do
  for run in "" -2 -3; do
    python scripts/practice/run.py load --trace workloads/mixed.jsonl --mode wall --warmup-requests 2 --policy $policy \
      --out runs/scheduler-$policy-gpu$run.jsonl
    logs="$logs,runs/scheduler-$policy-gpu$run.jsonl"
  done
done
python scripts/practice/run.py report --inputs "${logs#,}" --out runs/scheduler-comparison-gpu.json
# --8<-- [end:compare-gpu]

# ---- the exercise: at most two prefill batches in a row -------------------------------------------------------------

# The scenario comes first, and it is red: balanced never makes two prefill batches in a row while a decode waits.
# tier: cpu
# needs: patch-apply
# expect: 1
# prints: PDDPDPDPDPDPDDDDD
# --8<-- [start:variant-test]
source env.sh
cat > runs/check_variant.py <<'PY'
from nanolab import sources
from nanolab.cases.scheduling import Engine
from nanolab.cases.scheduling_practice import SCENARIOS, play

run = play(SCENARIOS[0], Engine.of(sources.resolve(), "balanced"))
gaps = {name: run.longest_gap(name) for name in ("S1", "S2")}
print(run.phases, gaps)
assert not run.problems, run.problems
assert "PP" in run.phases and "PPP" not in run.phases, "two prefill batches in a row, never three"
assert max(gaps.values()) == 3, "a running request waits for two prefill batches at most"
print("the variant holds")
PY
python runs/check_variant.py
# --8<-- [end:variant-test]

# tier: cpu
# needs: variant-test, rounds
# --8<-- [start:variant-save]
source env.sh
git -C "$NANO_DIR" diff > runs/before-variant.diff
# --8<-- [end:variant-save]

# tier: cpu
# needs: variant-save
# --8<-- [start:variant-solution]
source env.sh
git -C "$NANO_DIR" apply <<'PATCH'
--- a/nanoengine/engine/scheduler.py
+++ b/nanoengine/engine/scheduler.py
@@ -23,3 +23,3 @@
         self.balanced = config.scheduling_policy == "balanced"
-        self.last_was_prefill = False
+        self.prefills_in_a_row = 0
 
@@ -36,3 +36,3 @@
         """
-        is_prefill = not (self.balanced and self.last_was_prefill)
+        is_prefill = not (self.balanced and self.prefills_in_a_row >= 2)
         seqs = self.select_prefill() if is_prefill else self.select_decode()
@@ -41,3 +41,3 @@
             seqs = self.select_prefill() if is_prefill else self.select_decode()
-        self.last_was_prefill = is_prefill
+        self.prefills_in_a_row = self.prefills_in_a_row + 1 if is_prefill else 0
         return seqs, is_prefill
PATCH
# --8<-- [end:variant-solution]

# tier: cpu
# needs: variant-solution
# prints: the variant holds
# --8<-- [start:variant-check]
source env.sh
python runs/check_variant.py
# --8<-- [end:variant-check]

# The acceptance of `balanced` says no, and it is right to: this is another policy.
# tier: cpu
# needs: variant-solution
# expect: 1
# prints: balanced should serve a running request at least every second step, saw 3
# --8<-- [start:variant-red]
source env.sh
python scripts/e2e/scheduler_practice.py
# --8<-- [end:variant-red]

# tier: cpu
# block: scheduler-variant
# needs: variant-solution, rounds
# timeout: 900
# --8<-- [start:variant-rounds]
source env.sh
python scripts/practice/run.py load --trace workloads/mixed.jsonl --mode round --policy balanced --out runs/rounds-variant.jsonl
python scripts/practice/run.py report \
  --inputs runs/rounds-prefill_first.jsonl,runs/rounds-balanced.jsonl,runs/rounds-variant.jsonl --out runs/scheduler-variant.json
# --8<-- [end:variant-rounds]

# tier: cpu
# needs: variant-red, variant-rounds
# prints: PASS
# --8<-- [start:variant-undo]
source env.sh
git -C "$NANO_DIR" diff > runs/variant.diff
git -C "$NANO_DIR" apply --reverse "$LAB_ROOT/runs/variant.diff"
git -C "$NANO_DIR" apply "$LAB_ROOT/runs/before-variant.diff"
python scripts/e2e/patch.py status
python scripts/e2e/scheduler_practice.py
# --8<-- [end:variant-undo]
