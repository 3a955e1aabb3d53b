# 5.6 Two cards: two replicas side by side, then one engine on both. On CPU the same with processes and gloo.
# A result of the GPU route is called ID-gpu.

# ---- 5.6.1 before: what both ways are made of -----------------------------------------------------------------------

# tier: gpu reason=看两张卡怎样相连 | shows how the two cards are connected
# --8<-- [start:topology]
nvidia-smi topo -m
nvidia-smi --query-gpu=index,name,memory.used,memory.total --format=csv
# --8<-- [end:topology]

# tier: cpu
# block: tensor-parallel-shapes
# prints: PASS
# --8<-- [start:shapes]
source env.sh
mkdir -p runs
python scripts/e2e/principles.py shapes --tp 2 --out runs/tensor-parallel-shapes.json
# --8<-- [end:shapes]

# Without patch 04 two tensor-parallel engines meet at one address. The second one is refused.
# tier: cpu
# needs: 5-1-setup:working-copy
# prints: EADDRINUSE
# timeout: 400
# --8<-- [start:collide]
source env.sh
python scripts/practice/run.py serve --tp 2 --port 8801 --out runs/collide-a.jsonl & first=$!
until curl -sf http://127.0.0.1:8801/health > /dev/null; do sleep 0.5; done
timeout -k 10 120 python scripts/practice/run.py serve --tp 2 --port 8802 --out runs/collide-b.jsonl 2> runs/collide-b.log || true
tail -1 runs/collide-b.log
kill -TERM $first
wait $first
# --8<-- [end:collide]

# tier: cpu
# needs: 5-1-setup:working-copy
# --8<-- [start:patch-read]
source env.sh
python scripts/e2e/patch.py status
cat patches/04-replica-isolation.patch
# --8<-- [end:patch-read]

# tier: cpu
# needs: 5-4-scheduling:patch-apply
# prints: 04-replica-isolation         applied
# --8<-- [start:patch-apply]
source env.sh
git -C "$NANO_DIR" apply --check "$LAB_ROOT/patches/04-replica-isolation.patch"
git -C "$NANO_DIR" apply "$LAB_ROOT/patches/04-replica-isolation.patch"
git -C "$NANO_DIR" diff --stat
python scripts/e2e/patch.py status
# --8<-- [end:patch-apply]

# ---- two replicas ---------------------------------------------------------------------------------------------------

# tier: cpu
# needs: patch-apply
# background: http://127.0.0.1:8801/health
# --8<-- [start:replica-a]
source env.sh
OMP_NUM_THREADS=1 python scripts/practice/run.py serve --tp 1 --eager --policy balanced \
  --batch-seqs 4 --max-active 8 --port 8801 --worker-id replica-a \
  --dist-init tcp://127.0.0.1:29501 --shm-name nano_replica_a --out runs/server-replica-a.jsonl
# --8<-- [end:replica-a]

# tier: cpu
# needs: patch-apply
# background: http://127.0.0.1:8802/health
# --8<-- [start:replica-b]
source env.sh
OMP_NUM_THREADS=1 python scripts/practice/run.py serve --tp 1 --eager --policy balanced \
  --batch-seqs 4 --max-active 8 --port 8802 --worker-id replica-b \
  --dist-init tcp://127.0.0.1:29502 --shm-name nano_replica_b --out runs/server-replica-b.jsonl
# --8<-- [end:replica-b]

# tier: gpu reason=需要第 1 张 GPU | needs the first GPU
# needs: patch-apply
# background: http://127.0.0.1:8801/health
# --8<-- [start:replica-a-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/practice/run.py serve --tp 1 --eager --policy balanced --batch-seqs 4 --max-active 8 \
  --port 8801 --worker-id replica-a --dist-init tcp://127.0.0.1:29501 --shm-name nano_replica_a \
  --out runs/server-replica-a-gpu.jsonl
# --8<-- [end:replica-a-gpu]

# tier: gpu reason=需要第 2 张 GPU | needs the second GPU
# needs: patch-apply
# background: http://127.0.0.1:8802/health
# --8<-- [start:replica-b-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=1 python scripts/practice/run.py serve --tp 1 --eager --policy balanced --batch-seqs 4 --max-active 8 \
  --port 8802 --worker-id replica-b --dist-init tcp://127.0.0.1:29502 --shm-name nano_replica_b \
  --out runs/server-replica-b-gpu.jsonl
# --8<-- [end:replica-b-gpu]

# tier: cpu
# with: replica-a, replica-b
# needs: 5-3-service:trace
# timeout: 900
# --8<-- [start:single]
source env.sh
python scripts/practice/run.py load --endpoints http://127.0.0.1:8801 --trace workloads/mixed.jsonl --mode wall \
  --warmup-requests 2 --out runs/single-endpoint.jsonl || test $? -eq 3
# --8<-- [end:single]

# tier: gpu reason=需要两张 GPU | needs two GPUs
# with: replica-a-gpu, replica-b-gpu
# needs: 5-3-service:trace
# --8<-- [start:single-gpu]
source env.sh
python scripts/practice/run.py load --endpoints http://127.0.0.1:8801 --trace workloads/mixed.jsonl --mode wall \
  --warmup-requests 2 --out runs/single-endpoint-gpu.jsonl
# --8<-- [end:single-gpu]

# tier: cpu
# with: replica-a, replica-b
# needs: 5-3-service:trace, single
# timeout: 900
# --8<-- [start:replicas]
source env.sh
python scripts/practice/run.py load --endpoints http://127.0.0.1:8801,http://127.0.0.1:8802 \
  --trace workloads/mixed.jsonl --mode wall --warmup-requests 2 --out runs/replicas.jsonl || test $? -eq 3
# --8<-- [end:replicas]

# tier: gpu reason=需要两张 GPU | needs two GPUs
# with: replica-a-gpu, replica-b-gpu
# needs: 5-3-service:trace, single-gpu
# --8<-- [start:replicas-gpu]
source env.sh
python scripts/practice/run.py load --endpoints http://127.0.0.1:8801,http://127.0.0.1:8802 \
  --trace workloads/mixed.jsonl --mode wall --warmup-requests 2 --out runs/replicas-gpu.jsonl
# --8<-- [end:replicas-gpu]

# tier: cpu
# needs: replicas
# prints: same 12 requests: True
# prints: overlap
# --8<-- [start:both-worked]
source env.sh
python - runs/replicas.jsonl <<'PY'
import json
import sys
from pathlib import Path
from nanolab.serving.eventlog import read_log
from nanolab.serving.events import Ended, Sent

log = read_log(Path(sys.argv[1]))
wanted = {json.loads(line)["request_id"] for line in open("workloads/mixed.jsonl")}
sent = {event.request_id: event for event in log.of(Sent) if event.request_id not in log.header.warmup}
ended = {event.request_id: event for event in log.of(Ended) if event.request_id in sent}
print(f"same {len(wanted)} requests: {set(sent) == set(ended) == wanted}")
spans = {}
for name, event in sent.items():
    spans.setdefault(event.endpoint, []).append((event.t_ns, ended[name].t_ns))
begin = min(start for found in spans.values() for start, _ in found)
for endpoint, found in sorted(spans.items()):
    first, last = min(start for start, _ in found), max(end for _, end in found)
    print(f"{endpoint}: {len(found)} requests, {(first - begin) / 1e6:.0f} to {(last - begin) / 1e6:.0f} ms")
both = min(max(e for _, e in f) for f in spans.values()) - max(min(s for s, _ in f) for f in spans.values())
print(f"overlap {both / 1e6:.0f} ms")
PY
# --8<-- [end:both-worked]

# ---- 5.6.2 one engine on both cards ---------------------------------------------------------------------------------

# tier: cpu
# needs: patch-apply
# background: http://127.0.0.1:8801/health
# --8<-- [start:tp2-server]
source env.sh
OMP_NUM_THREADS=1 python scripts/practice/run.py serve --tp 2 --eager --policy balanced \
  --batch-seqs 8 --max-active 16 --port 8801 --worker-id tp-two \
  --dist-init tcp://127.0.0.1:29503 --shm-name nano_tp_two --out runs/server-tp2.jsonl
# --8<-- [end:tp2-server]

# tier: gpu reason=需要两张 GPU | needs two GPUs
# needs: patch-apply
# background: http://127.0.0.1:8801/health
# --8<-- [start:tp2-server-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0,1 python scripts/practice/run.py serve --tp 2 --eager --policy balanced --batch-seqs 8 --max-active 16 \
  --port 8801 --worker-id tp-two --dist-init tcp://127.0.0.1:29503 --shm-name nano_tp_two --out runs/server-tp2-gpu.jsonl
# --8<-- [end:tp2-server-gpu]

# tier: cpu
# with: tp2-server
# needs: 5-3-service:trace
# timeout: 900
# --8<-- [start:tp2]
source env.sh
python scripts/practice/run.py load --endpoints http://127.0.0.1:8801 --trace workloads/mixed.jsonl --mode wall \
  --warmup-requests 2 --out runs/tp2.jsonl || test $? -eq 3
# --8<-- [end:tp2]

# tier: gpu reason=需要两张 GPU | needs two GPUs
# with: tp2-server-gpu
# needs: 5-3-service:trace
# --8<-- [start:tp2-gpu]
source env.sh
python scripts/practice/run.py load --endpoints http://127.0.0.1:8801 --trace workloads/mixed.jsonl --mode wall \
  --warmup-requests 2 --out runs/tp2-gpu.jsonl
nvidia-smi --query-gpu=index,memory.used --format=csv
# --8<-- [end:tp2-gpu]

# tier: cpu
# block: quick-A-tp2
# needs: patch-apply
# prints: PASS
# --8<-- [start:walk-tp2]
source env.sh
python scripts/e2e/quick_walk.py --case A --tp 2 --trace --out runs/quick-A-tp2.json
# --8<-- [end:walk-tp2]

# tier: gpu reason=需要两张 GPU | needs two GPUs
# block: quick-A-tp2-gpu
# needs: patch-apply
# prints: PASS
# --8<-- [start:walk-tp2-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0,1 python scripts/e2e/quick_walk.py --case A --tp 2 --trace --out runs/quick-A-tp2-gpu.json
# --8<-- [end:walk-tp2-gpu]

# tier: cpu
# block: engine-logits-tp
# needs: patch-apply
# prints: PASS
# --8<-- [start:logits-tp]
source env.sh
python scripts/e2e/logits_check.py collect --backend nano --dtype float32 --out runs/engine-nano-tp1
python scripts/e2e/logits_check.py collect --backend nano --dtype float32 --tp 2 --out runs/engine-nano-tp2
python scripts/e2e/logits_check.py compare --lhs runs/engine-nano-tp1 --rhs runs/engine-nano-tp2 \
  --max-abs 0.001 --rel-l2 0.0001 --out runs/engine-logits-tp.json
# --8<-- [end:logits-tp]

# tier: gpu reason=需要两张 GPU | needs two GPUs
# block: engine-logits-tp-gpu
# needs: patch-apply
# --8<-- [start:logits-tp-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/logits_check.py collect --backend nano --out runs/engine-nano-gpu
CUDA_VISIBLE_DEVICES=0,1 python scripts/e2e/logits_check.py collect --backend nano --tp 2 --out runs/engine-nano-tp2-gpu
python scripts/e2e/logits_check.py compare --lhs runs/engine-nano-gpu --rhs runs/engine-nano-tp2-gpu \
  --max-abs 0.5 --rel-l2 0.02 --out runs/engine-logits-tp-gpu.json || test $? -eq 3
# --8<-- [end:logits-tp-gpu]

# tier: cpu
# needs: patch-apply
# expect: 2
# prints: must both divide by it
# --8<-- [start:tp3]
source env.sh
python scripts/e2e/quick_walk.py --case A --tp 3
# --8<-- [end:tp3]

# tier: cpu
# block: parallel-comparison
# needs: single, replicas, tp2
# --8<-- [start:compare]
source env.sh
python scripts/practice/run.py report --inputs runs/single-endpoint.jsonl,runs/replicas.jsonl,runs/tp2.jsonl \
  --out runs/parallel-comparison.json || test $? -eq 3
for log in server-replica-a server-replica-b server-tp2; do
  echo "$log $(head -1 runs/$log.jsonl | grep -o '"num_blocks":[0-9]*')"
done
# --8<-- [end:compare]

# tier: gpu reason=汇总在两张 GPU 上录下的日志 | reports the logs recorded on two GPUs
# block: parallel-comparison-gpu
# needs: single-gpu, replicas-gpu, tp2-gpu
# --8<-- [start:compare-gpu]
source env.sh
python scripts/practice/run.py report --inputs runs/single-endpoint-gpu.jsonl,runs/replicas-gpu.jsonl,runs/tp2-gpu.jsonl \
  --out runs/parallel-comparison-gpu.json
for log in server-replica-a-gpu server-replica-b-gpu server-tp2-gpu; do
  echo "$log $(head -1 runs/$log.jsonl | grep -o '"num_blocks":[0-9]*')"
done
# --8<-- [end:compare-gpu]

# The collectives of rank 0, counted on a GPU. A profile locates; it is not compared.
# tier: gpu reason=需要两张 GPU | needs two GPUs
# block: profile-tp2-gpu
# needs: patch-apply, 5-3-service:trace
# --8<-- [start:collectives-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0,1 python scripts/practice/run.py load --trace workloads/mixed.jsonl --policy balanced --tp 2 \
  --batch-seqs 8 --max-active 16 --dist-init tcp://127.0.0.1:29503 --shm-name nano_tp_two \
  --profile-dir runs/profile-tp2-gpu --profile-steps 20 --out runs/profile-tp2-gpu.jsonl
python scripts/maintain/profile_view.py --profile runs/profile-tp2-gpu --log runs/profile-tp2-gpu.jsonl \
  --out runs/profile-tp2-gpu.json
# --8<-- [end:collectives-gpu]

# A rank that dies while it works: bounded, and with a reason.
# tier: cpu
# needs: patch-apply, 5-3-service:trace
# prints: "status":"dead"
# prints: server exit code 1
# timeout: 400
# --8<-- [start:kill-rank]
source env.sh
python scripts/practice/run.py serve --tp 2 --policy balanced --batch-seqs 8 --max-active 16 --port 8801 \
  --worker-id tp-two --dist-init tcp://127.0.0.1:29503 --shm-name nano_tp_two --out runs/server-rank.jsonl & server=$!
until curl -sf http://127.0.0.1:8801/health > /dev/null; do sleep 0.5; done
timeout -k 5 120 python scripts/practice/run.py load --endpoints http://127.0.0.1:8801 --trace workloads/mixed.jsonl \
  --out runs/rank-killed.jsonl > runs/rank-killed.log & load=$!
until curl -s http://127.0.0.1:8801/health | grep -q '"active":[1-9][0-9]'; do sleep 0.1; done
rank=$(pgrep -P $server -f spawn_main)
kill -KILL $rank
wait $load || true
curl -s http://127.0.0.1:8801/health | cut -c1-90; echo
kill -TERM $server
wait $server || echo "server exit code $?"
cat runs/rank-killed.log
ls /dev/shm | grep -x nano_tp_two || echo "no shared memory left"
# --8<-- [end:kill-rank]

# ---- the change: a router that weighs the work ----------------------------------------------------------------------

# tier: cpu
# needs: 5-3-service:trace
# prints: round_robin
# --8<-- [start:route-offline]
source env.sh
python - <<'PY'
from pathlib import Path
from nanolab.load.router import ROUTERS, expected_work, plan
from nanolab.load.trace import read_trace

requests = read_trace(Path("workloads/mixed.jsonl")).requests
for policy in ROUTERS:
    chosen = plan(requests, policy, 2)
    work = [sum(expected_work(r) for r, replica in zip(requests, chosen) if replica == n) for n in (0, 1)]
    long = [sum(r.request_class == "long" for r, replica in zip(requests, chosen) if replica == n) for n in (0, 1)]
    print(f"{policy:13} {chosen}  tokens {work}  long requests {long}")
PY
# --8<-- [end:route-offline]

# tier: cpu
# with: replica-a, replica-b
# needs: replicas
# timeout: 900
# --8<-- [start:route]
source env.sh
python scripts/practice/run.py load --endpoints http://127.0.0.1:8801,http://127.0.0.1:8802 --router expected_work \
  --trace workloads/mixed.jsonl --mode wall --warmup-requests 2 --out runs/replicas-work.jsonl || test $? -eq 3
grep '"event":"sent"' runs/replicas-work.jsonl | grep '"r00' | grep -o '"request_id":"[^"]*"\|"route":{.*}'
# --8<-- [end:route]

# tier: cpu
# block: router-comparison
# needs: route
# --8<-- [start:route-report]
source env.sh
python scripts/practice/run.py report --inputs runs/replicas.jsonl,runs/replicas-work.jsonl \
  --out runs/router-comparison.json || test $? -eq 3
# --8<-- [end:route-report]

# tier: gpu reason=需要两张 GPU | needs two GPUs
# with: replica-a-gpu, replica-b-gpu
# needs: replicas-gpu
# --8<-- [start:route-gpu]
source env.sh
python scripts/practice/run.py load --endpoints http://127.0.0.1:8801,http://127.0.0.1:8802 --router expected_work \
  --trace workloads/mixed.jsonl --mode wall --warmup-requests 2 --out runs/replicas-work-gpu.jsonl
# --8<-- [end:route-gpu]

# tier: gpu reason=汇总在两张 GPU 上录下的日志 | reports the logs recorded on two GPUs
# block: router-comparison-gpu
# needs: route-gpu
# --8<-- [start:route-report-gpu]
source env.sh
python scripts/practice/run.py report --inputs runs/replicas-gpu.jsonl,runs/replicas-work-gpu.jsonl \
  --out runs/router-comparison-gpu.json
# --8<-- [end:route-report-gpu]
