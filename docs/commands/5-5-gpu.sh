# 5.5 Into the GPU: a profile locates time, a comparison with one variable measures it.
# A result of the GPU route is called ID-gpu.

# ---- 5.5.1 profile --------------------------------------------------------------------------------------------------

# tier: gpu reason=录下 GPU 上的内核 | records the kernels on the GPU
# needs: 5-4-scheduling:patch-apply, 5-3-service:trace
# --8<-- [start:profile-gpu]
source env.sh
unset NANO_LAB_TRACE
CUDA_VISIBLE_DEVICES=0 python scripts/practice/run.py load --trace workloads/mixed.jsonl --mode wall --warmup-requests 2 \
  --policy balanced --eager --profile-dir runs/profile-eager-gpu --profile-steps 40 --out runs/profile-eager-gpu.jsonl
ls -l runs/profile-eager-gpu
# --8<-- [end:profile-gpu]

# tier: cpu
# needs: 5-4-scheduling:patch-apply, 5-3-service:trace
# timeout: 900
# --8<-- [start:profile]
source env.sh
unset NANO_LAB_TRACE
python scripts/practice/run.py load --trace workloads/mixed.jsonl --mode wall --warmup-requests 2 \
  --policy balanced --eager --profile-dir runs/profile-eager --profile-steps 40 --out runs/profile-eager.jsonl || test $? -eq 3
ls -l runs/profile-eager
# --8<-- [end:profile]

# tier: gpu reason=读 GPU 上录下的 profile | reads the profile recorded on the GPU
# block: profile-eager-gpu
# needs: profile-gpu
# --8<-- [start:view-gpu]
source env.sh
python scripts/maintain/profile_view.py --profile runs/profile-eager-gpu --log runs/profile-eager-gpu.jsonl \
  --out runs/profile-eager-gpu.json
# --8<-- [end:view-gpu]

# tier: cpu
# block: profile-eager
# needs: profile
# prints: decode:
# --8<-- [start:view]
source env.sh
python scripts/maintain/profile_view.py --profile runs/profile-eager --log runs/profile-eager.jsonl --out runs/profile-eager.json
# --8<-- [end:view]

# tier: cpu
# needs: profile
# prints: run_model
# --8<-- [start:operators]
head -12 runs/profile-eager/operators.txt | cut -c1-140
# --8<-- [end:operators]

# tier: doc reason=换成你的用户名和主机，在自己的电脑上执行 | put in your user and host, run it on your own computer
# --8<-- [start:fetch]
scp YOUR_USER@YOUR_GPU_HOST:nanovllm-inference-lab/runs/profile-eager-gpu.trace.json.gz .
# --8<-- [end:fetch]

# A profiled log next to an unprofiled one: the report refuses to average them together.
# tier: cpu
# needs: profile
# prints: profile-eager.jsonl: profile, not averaged
# --8<-- [start:never-compare]
source env.sh
python scripts/practice/run.py report --inputs runs/profile-eager.jsonl --out runs/profile-report.json || test $? -eq 3
# --8<-- [end:never-compare]

# ---- 5.5.2 eager against graph --------------------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: 4 [1, 2, 4]
# --8<-- [start:buckets]
source env.sh
python - <<'PY'
from nanolab import sources

graph_sizes = sources.resolve().module("engine.cuda_graph").graph_sizes
for max_num_seqs in (4, 20, 32):
    print(max_num_seqs, graph_sizes(max_num_seqs))
PY
# --8<-- [end:buckets]

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: 02-graph-eager-fallback
# --8<-- [start:patch-check]
source env.sh
python scripts/e2e/patch.py status
git -C "$NANO_DIR" apply --check "$LAB_ROOT/patches/02-graph-eager-fallback.patch"
# --8<-- [end:patch-check]

# tier: doc reason=二选一：在这里应用，或留到 B.5 | choose: apply it here, or leave it to B.5
# --8<-- [start:patch-apply]
source env.sh
git -C "$NANO_DIR" apply "$LAB_ROOT/patches/02-graph-eager-fallback.patch"
# --8<-- [end:patch-apply]

# tier: gpu reason=回放 CUDA Graph | replays CUDA graphs
# block: execution-comparison-gpu
# needs: 5-4-scheduling:patch-apply, 5-3-service:trace
# timeout: 600
# --8<-- [start:compare-gpu]
source env.sh
export CUDA_VISIBLE_DEVICES=0
logs=""
for execution in eager graph; do
  for run in "" -2 -3; do
    python scripts/practice/run.py load --trace workloads/mixed.jsonl --mode wall --warmup-requests 2 --policy balanced \
      --"$execution" --out runs/execution-$execution-gpu$run.jsonl
    logs="$logs,runs/execution-$execution-gpu$run.jsonl"
  done
done
python scripts/practice/run.py report --inputs "${logs#,}" --out runs/execution-comparison-gpu.json
# --8<-- [end:compare-gpu]

# tier: gpu reason=回放 CUDA Graph | replays CUDA graphs
# needs: 5-4-scheduling:patch-apply
# --8<-- [start:no-gain-gpu]
source env.sh
export CUDA_VISIBLE_DEVICES=0
python scripts/practice/run.py trace --out workloads/prefill-heavy.jsonl --requests 12 --long-every 1 --max-tokens 2 --seed 17
for execution in eager graph; do
  python scripts/practice/run.py load --trace workloads/prefill-heavy.jsonl --policy balanced --"$execution" \
    --out runs/prefill-heavy-$execution-gpu.jsonl
done
python scripts/practice/run.py report --inputs runs/prefill-heavy-eager-gpu.jsonl,runs/prefill-heavy-graph-gpu.jsonl \
  --out runs/prefill-heavy-gpu.json
# --8<-- [end:no-gain-gpu]
