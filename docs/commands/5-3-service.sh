# 5.3 The smallest service: one loop owns the engine, events say what happened, then HTTP in front of it.
# A result of the GPU route is called ID-gpu, so that one host can hold both.

# ---- 5.3.1 one owner loop -------------------------------------------------------------------------------------------

# tier: cpu
# prints: 8 of 8 scenarios hold
# --8<-- [start:simulate]
source env.sh
mkdir -p runs
python scripts/practice/run.py simulate --out runs/runtime-cpu.jsonl
# --8<-- [end:simulate]

# tier: cpu
# block: runtime-cpu
# needs: simulate
# --8<-- [start:simulate-report]
source env.sh
python scripts/practice/run.py report --inputs runs/runtime-cpu.jsonl --out runs/runtime-cpu.json
# --8<-- [end:simulate-report]

# tier: cpu
# needs: simulate
# prints: "event":"admitted"
# --8<-- [start:simulate-read]
source env.sh
grep '"dynamic-join"' runs/runtime-cpu.jsonl | cut -c1-110 | head -14
# --8<-- [end:simulate-read]

# tier: cpu
# prints: 12 requests (3 long, 9 short), 2592 prompt tokens, 768 output tokens, last arrival 440 ms
# --8<-- [start:trace]
source env.sh
python scripts/practice/run.py trace --out workloads/mixed.jsonl --requests 12 \
  --prompt-tokens 32 --long-prompt-tokens 768 --long-every 4 --max-tokens 64 --interval-ms 40 --seed 17
cut -c1-120 workloads/mixed.jsonl
# --8<-- [end:trace]

# tier: cpu
# needs: 5-1-setup:working-copy, trace
# prints: 12 requests: 12 length
# timeout: 600
# --8<-- [start:load]
source env.sh
python scripts/practice/run.py load --trace workloads/mixed.jsonl --mode wall --warmup-requests 2 \
  --policy prefill_first --max-model-len 1024 --batch-tokens 256 --batch-seqs 4 --max-active 8 \
  --tp 1 --eager --out runs/prefill-first.jsonl || test $? -eq 3
# --8<-- [end:load]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# needs: 5-1-setup:working-copy, trace
# prints: 12 requests: 12 length
# --8<-- [start:load-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/practice/run.py load --trace workloads/mixed.jsonl --mode wall --warmup-requests 2 \
  --policy prefill_first --max-model-len 1024 --batch-tokens 256 --batch-seqs 4 --max-active 8 \
  --tp 1 --eager --out runs/prefill-first-gpu.jsonl
# --8<-- [end:load-gpu]

# The life of one request as the engine saw it. On a GPU host read runs/prefill-first-gpu.jsonl instead.
# tier: cpu
# needs: load
# prints: prefill 768/0/256
# prints: finished length, 64 tokens
# --8<-- [start:life]
source env.sh
python - > runs/life.txt <<'PY'
from pathlib import Path
from nanolab.serving.eventlog import read_log
from nanolab.serving.events import Admitted, Finished, Step, Submitted, Token

who, log = "r0003", read_log(Path("runs/prefill-first.jsonl"))
start = next(event.t_ns for event in log.of(Submitted) if event.request_id == who)
for event in log.of(Submitted, Admitted, Step, Token, Finished):
    rows = [row for row in event.batch if row[0] == who] if isinstance(event, Step) else []
    if rows:
        _, total, cached, scheduled, _ = rows[0]
        what = f"{event.phase} {total}/{cached}/{scheduled}"
    elif event.request_id != who:
        continue
    elif isinstance(event, Admitted):
        what = f"admitted, {event.active} active before it"
    elif isinstance(event, Token):
        what = f"    token {event.index}"
    elif isinstance(event, Finished):
        what = f"finished {event.reason.value}, {event.output_tokens} tokens"
    else:
        what = "submitted"
    print(f"{(event.t_ns - start) / 1e6:9.1f} ms  round {event.round:4}  {what}")
PY
head -12 runs/life.txt
tail -3 runs/life.txt
# --8<-- [end:life]

# tier: cpu
# needs: load
# prints: PASS
# --8<-- [start:timeline]
source env.sh
python scripts/practice/run.py timeline --input runs/prefill-first.jsonl --out runs/prefill-first-timeline.json
# --8<-- [end:timeline]

# tier: cpu
# block: prefill-first-rounds
# needs: 5-1-setup:working-copy, trace
# timeout: 600
# --8<-- [start:rounds]
source env.sh
python scripts/practice/run.py load --trace workloads/mixed.jsonl --mode round --policy prefill_first \
  --out runs/prefill-first-rounds.jsonl
python scripts/practice/run.py report --inputs runs/prefill-first-rounds.jsonl --out runs/prefill-first-rounds.json
# --8<-- [end:rounds]

# ---- 5.3.2 metrics, then HTTP ---------------------------------------------------------------------------------------

# tier: cpu
# block: prefill-first
# needs: load
# --8<-- [start:report]
source env.sh
python scripts/practice/run.py report --inputs runs/prefill-first.jsonl --out runs/prefill-first.json || test $? -eq 3
# --8<-- [end:report]

# tier: gpu reason=汇总在 GPU 上录下的日志 | reports the log recorded on the GPU
# block: prefill-first-gpu
# needs: load-gpu
# --8<-- [start:report-gpu]
source env.sh
python scripts/practice/run.py report --inputs runs/prefill-first-gpu.jsonl --out runs/prefill-first-gpu.json
# --8<-- [end:report-gpu]

# tier: cpu
# block: arrivals
# needs: 5-1-setup:working-copy
# timeout: 900
# --8<-- [start:arrivals]
source env.sh
for ms in 1000 40 5; do
  python scripts/practice/run.py trace --out workloads/every-$ms.jsonl --requests 8 --max-tokens 16 --interval-ms $ms --seed 17
  python scripts/practice/run.py load --trace workloads/every-$ms.jsonl --out runs/every-$ms.jsonl || test $? -eq 3
done
python scripts/practice/run.py report --inputs runs/every-1000.jsonl,runs/every-40.jsonl,runs/every-5.jsonl \
  --out runs/arrivals.json || test $? -eq 3
# --8<-- [end:arrivals]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: arrivals-gpu
# needs: 5-1-setup:working-copy
# --8<-- [start:arrivals-gpu]
source env.sh
export CUDA_VISIBLE_DEVICES=0
for ms in 1000 40 5; do
  python scripts/practice/run.py trace --out workloads/every-$ms.jsonl --requests 8 --max-tokens 16 --interval-ms $ms --seed 17
  python scripts/practice/run.py load --trace workloads/every-$ms.jsonl --out runs/every-$ms-gpu.jsonl
done
python scripts/practice/run.py report --inputs runs/every-1000-gpu.jsonl,runs/every-40-gpu.jsonl,runs/every-5-gpu.jsonl \
  --out runs/arrivals-gpu.json
# --8<-- [end:arrivals-gpu]

# tier: cpu
# needs: 5-1-setup:working-copy
# background: http://127.0.0.1:8801/health
# --8<-- [start:serve]
source env.sh
python scripts/practice/run.py serve --policy prefill_first --port 8801 --out runs/server-single.jsonl
# --8<-- [end:serve]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# needs: 5-1-setup:working-copy
# background: http://127.0.0.1:8801/health
# --8<-- [start:serve-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/practice/run.py serve --policy prefill_first --port 8801 --out runs/server-single.jsonl
# --8<-- [end:serve-gpu]

# tier: cpu
# with: serve
# prints: ended as
# --8<-- [start:client]
source env.sh
python scripts/practice/run.py client --endpoints http://127.0.0.1:8801 --prompt "Why does a KV cache exist?" \
  --max-tokens 24 --request-id first --out runs/client.jsonl
# --8<-- [end:client]

# tier: cpu
# with: serve
# prints: "event":"accepted"
# prints: "event":"finished"
# prints: data: [DONE]
# --8<-- [start:curl]
curl -sN http://127.0.0.1:8801/generate -H 'Content-Type: application/json' \
  -d '{"prompt": "Hello", "max_tokens": 3, "request_id": "curl-1"}'
curl -sN http://127.0.0.1:8801/v1/completions -H 'Content-Type: application/json' \
  -d '{"prompt": "Hello", "max_tokens": 3, "stream": true, "stream_options": {"include_usage": true}}'
# --8<-- [end:curl]

# tier: cpu
# with: serve
# prints: "status":"ok"
# prints: vllm:num_requests_running
# --8<-- [start:look]
curl -s http://127.0.0.1:8801/health; echo
curl -s http://127.0.0.1:8801/v1/models; echo
curl -s http://127.0.0.1:8801/metrics | grep -v '^#' | grep -E 'running|waiting|queued|finished|_total'
# --8<-- [end:look]

# tier: doc reason=装 OpenAI 客户端，需要网络 | installs OpenAI's client, needs the network
# --8<-- [start:openai-install]
source env.sh
python -m pip install openai==3.57.0
# --8<-- [end:openai-install]

# tier: cpu
# with: serve
# prints: completion_tokens=8
# --8<-- [start:openai]
source env.sh
python - <<'PY'
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8801/v1", api_key="unused")
stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "Hello"}],
    max_tokens=8,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    print(chunk.choices[0].delta.content if chunk.choices else chunk.usage)
PY
# --8<-- [end:openai]

# tier: cpu
# with: serve
# prints: 12 requests: 12 length
# timeout: 600
# --8<-- [start:load-http]
source env.sh
python scripts/practice/run.py load --endpoints http://127.0.0.1:8801 --trace workloads/mixed.jsonl --mode wall \
  --warmup-requests 2 --out runs/server-load.jsonl || test $? -eq 3
# --8<-- [end:load-http]

# What the service itself costs, without a model: a benchmark, to be judged on a quiet machine only.
# tier: doc reason=测速度，要安静的机器 | measures speed, needs a quiet machine
# block: service-benchmark
# --8<-- [start:speed]
source env.sh
OMP_NUM_THREADS=1 python scripts/maintain/bench_service.py --out runs/service-benchmark.json
# --8<-- [end:speed]

# ---- the change: a diagnostic field at admission --------------------------------------------------------------------

# tier: cpu
# needs: simulate, rounds
# --8<-- [start:change-before]
source env.sh
cp src/nanolab/serving/worker.py runs/worker-before.py
cp runs/runtime-cpu.jsonl runs/runtime-before.jsonl
cp runs/prefill-first-rounds.jsonl runs/rounds-before.jsonl
# --8<-- [end:change-before]

# tier: cpu
# needs: change-before
# --8<-- [start:change-solution]
source env.sh
git apply <<'PATCH'
--- a/src/nanolab/serving/worker.py
+++ b/src/nanolab/serving/worker.py
@@ -265,3 +265,4 @@
             self._active[ticket.sequence.seq_id] = ticket
-            self._output.openings.append((ticket, Admitted(**self._stamp(ticket), active=active)))
+            seen = {"queued_behind": len(self._queue), "free_blocks": engine.free_blocks}
+            self._output.openings.append((ticket, Admitted(**self._stamp(ticket), active=active, diagnostics=seen)))
 
PATCH
# --8<-- [end:change-solution]

# tier: cpu
# needs: change-solution
# prints: runs/runtime-before.jsonl: same story
# prints: runs/rounds-before.jsonl: same story
# timeout: 600
# --8<-- [start:change-check]
source env.sh
python scripts/practice/run.py simulate --out runs/runtime-cpu.jsonl | tail -2
python scripts/practice/run.py load --trace workloads/mixed.jsonl --mode round --policy prefill_first \
  --out runs/prefill-first-rounds.jsonl
python - <<'PY'
from pathlib import Path
from nanolab.serving.eventlog import read_log
from nanolab.serving.events import Admitted, Finished, Submitted, Token

def stories(path):
    found = {}
    for event in read_log(Path(path)).of(Submitted, Admitted, Token, Finished):
        what = getattr(event, "token", None), getattr(event, "reason", None)
        found.setdefault(event.request_id, []).append((type(event).__name__, *what))
    return {name: story for name, story in found.items() if story[-1][-1] == "length"}

for before, after in (("runtime-before", "runtime-cpu"), ("rounds-before", "prefill-first-rounds")):
    same = stories(f"runs/{before}.jsonl") == stories(f"runs/{after}.jsonl")
    print(f"runs/{before}.jsonl: {'same story' if same else 'CHANGED'}")
PY
grep '"admitted","request_id":"r' runs/prefill-first-rounds.jsonl
# --8<-- [end:change-check]

# tier: cpu
# needs: change-solution
# with: serve
# prints: "free_blocks":
# --8<-- [start:change-http]
curl -sN http://127.0.0.1:8801/generate -H 'Content-Type: application/json' \
  -d '{"prompt": "Hello", "max_tokens": 2, "request_id": "with-my-field"}' | grep admitted
# --8<-- [end:change-http]

# tier: cpu
# needs: change-check
# --8<-- [start:change-record]
source env.sh
mkdir -p notes
diff -u runs/worker-before.py src/nanolab/serving/worker.py > runs/worker-change.diff || test $? -eq 1
cat runs/worker-change.diff
# --8<-- [end:change-record]

# tier: cpu
# needs: change-record
# --8<-- [start:change-undo]
source env.sh
cp runs/worker-before.py src/nanolab/serving/worker.py
# --8<-- [end:change-undo]
