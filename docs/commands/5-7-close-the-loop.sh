# 5.7 Close the loop: what may happen to a request, what must be recovered, and the report that answers one question.
# A result of the GPU route is called ID-gpu.

# ---- 5.7.1 cancel ---------------------------------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# background: http://127.0.0.1:8801/health
# --8<-- [start:serve]
source env.sh
python scripts/practice/run.py serve --port 8801 --out runs/server-cancel.jsonl
# --8<-- [end:serve]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# needs: 5-1-setup:working-copy
# background: http://127.0.0.1:8801/health
# --8<-- [start:serve-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/practice/run.py serve --port 8801 --out runs/server-cancel-gpu.jsonl
# --8<-- [end:serve-gpu]

# tier: cpu
# with: serve
# prints: ended as cancelled
# prints: "result":"already_finished"
# prints: "result":"unknown"
# --8<-- [start:cancel]
source env.sh
python scripts/practice/run.py client --endpoints http://127.0.0.1:8801 --prompt "Count from one to one hundred." \
  --max-tokens 128 --request-id leaves --cancel-after 4 --out runs/client-cancel.jsonl
python scripts/practice/run.py client --endpoints http://127.0.0.1:8801 --prompt "Count from one to one hundred." \
  --max-tokens 8 --request-id after --out runs/client-after.jsonl
for id in leaves nobody; do
  curl -s http://127.0.0.1:8801/cancel -H 'Content-Type: application/json' -d "{\"request_id\": \"$id\"}"; echo
done
# --8<-- [end:cancel]

# tier: cpu
# block: client-cancel
# needs: cancel
# --8<-- [start:cancel-report]
source env.sh
python scripts/practice/run.py report --inputs runs/server-cancel.jsonl --out runs/client-cancel.json
# --8<-- [end:cancel-report]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# with: serve-gpu
# prints: ended as cancelled
# --8<-- [start:cancel-gpu]
source env.sh
python scripts/practice/run.py client --endpoints http://127.0.0.1:8801 --prompt "Count from one to one hundred." \
  --max-tokens 128 --request-id leaves --cancel-after 4 --out runs/client-cancel-gpu.jsonl
python scripts/practice/run.py client --endpoints http://127.0.0.1:8801 --prompt "Count from one to one hundred." \
  --max-tokens 8 --request-id after --out runs/client-after-gpu.jsonl
for id in leaves nobody; do
  curl -s http://127.0.0.1:8801/cancel -H 'Content-Type: application/json' -d "{\"request_id\": \"$id\"}"; echo
done
# --8<-- [end:cancel-gpu]

# tier: gpu reason=汇总在 GPU 上录下的日志 | reports the log recorded on the GPU
# block: client-cancel-gpu
# needs: cancel-gpu
# --8<-- [start:cancel-report-gpu]
source env.sh
python scripts/practice/run.py report --inputs runs/server-cancel-gpu.jsonl --out runs/client-cancel-gpu.json
# --8<-- [end:cancel-report-gpu]

# tier: cpu
# needs: cancel
# prints: every page is back
# --8<-- [start:reclaimed]
source env.sh
python - runs/server-cancel.jsonl <<'PY'
import sys
from pathlib import Path
from nanolab.serving.eventlog import read_log
from nanolab.serving.events import Event, Finished, Step, Token

log = read_log(Path(sys.argv[1]))
pool = log.header.config["num_blocks"]
for end in log.of(Finished):
    life = [event for event in log.events if event.request_id == end.request_id]
    tokens = [event for event in life if isinstance(event, Token)]
    held = [row[4] for step in log.of(Step) for row in step.batch if row[0] == end.request_id]
    late = life[life.index(end) + 1 :]
    print(f"{end.request_id}: {end.reason.value}, {len(tokens)} tokens, held pages {held[-1]}, {len(late)} events after its end")
free = list(log.of(Step))[-1].free_blocks
print(f"free after the last step: {free} of {pool}: {'every page is back' if free == pool else 'PAGES ARE MISSING'}")
PY
# --8<-- [end:reclaimed]

# ---- overload -------------------------------------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# background: http://127.0.0.1:8801/health
# --8<-- [start:serve-small]
source env.sh
python scripts/practice/run.py serve --port 8801 --max-active 1 --max-queued 2 --out runs/server-overload.jsonl
# --8<-- [end:serve-small]

# tier: cpu
# with: serve-small
# prints: hung up
# prints: reason="cancelled"
# --8<-- [start:hang-up]
curl -sN --max-time 1 http://127.0.0.1:8801/generate -H 'Content-Type: application/json' \
  -d '{"prompt": "Hello", "max_tokens": 900, "request_id": "hangs-up"}' > runs/hung-up.txt || echo "hung up"
until curl -s http://127.0.0.1:8801/health | grep -q '"active":0'; do sleep 0.1; done
curl -s http://127.0.0.1:8801/metrics | grep '^nanolab:requests_finished_total'
# --8<-- [end:hang-up]

# tier: cpu
# with: serve-small
# needs: 5-3-service:trace
# prints: rejected
# timeout: 600
# --8<-- [start:overload]
source env.sh
python scripts/practice/run.py load --endpoints http://127.0.0.1:8801 --trace workloads/mixed.jsonl --out runs/overload.jsonl \
  || test $? -eq 3
# --8<-- [end:overload]

# tier: cpu
# block: overload
# needs: overload
# --8<-- [start:overload-report]
source env.sh
python scripts/practice/run.py report --inputs runs/overload.jsonl --out runs/overload.json || test $? -eq 3
# --8<-- [end:overload-report]

# ---- a slow reader, an engine error, shutdown: the scenarios of 5.3.1 again -----------------------------------------

# tier: cpu
# needs: 5-3-service:simulate
# prints: slow_consumer
# prints: injected fault
# --8<-- [start:faults]
source env.sh
for scenario in slow-consumer engine-exception close; do
  echo "== $scenario"
  grep "\"$scenario\"" runs/runtime-cpu.jsonl | grep '"finished"' | sed -E 's/.*"request_id":"([^"]*)".*"reason":/\1  /'
done
# --8<-- [end:faults]

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: ended as shutdown
# prints: server exit code 0
# --8<-- [start:shutdown]
source env.sh
python scripts/practice/run.py serve --port 8801 --drain-s 1 --out runs/server-drain.jsonl & server=$!
until curl -sf http://127.0.0.1:8801/health > /dev/null; do sleep 0.2; done
python scripts/practice/run.py client --endpoints http://127.0.0.1:8801 --prompt "Count." --max-tokens 900 \
  --request-id open --out runs/client-drain.jsonl > runs/client-drain.log & client=$!
until curl -s http://127.0.0.1:8801/health | grep -q '"active":1'; do sleep 0.1; done
kill -TERM $server
wait $client || echo "client exit code $?"
wait $server; echo "server exit code $?"
tail -2 runs/client-drain.log
grep '"finished"' runs/server-drain.jsonl
# --8<-- [end:shutdown]

# tier: cpu
# needs: shutdown
# prints: nobody answers on 8801
# --8<-- [start:nothing-left]
curl -s http://127.0.0.1:8801/health || echo "nobody answers on 8801"
ls /dev/shm | grep -x -E 'nanoengine|nano_.*' || echo "no shared memory left"
# --8<-- [end:nothing-left]

# ---- 5.7.2 the report -----------------------------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# --8<-- [start:records]
source env.sh
mkdir -p runs
git -C "$NANO_DIR" diff "$NANO_COMMIT" > runs/engine-changes.patch
git -C "$NANO_DIR" rev-parse HEAD > runs/source-head.txt
python -m pip freeze > runs/environment.txt
grep -c '^[+-][^+-]' runs/engine-changes.patch || true
# --8<-- [end:records]

# tier: cpu
# needs: records, 5-1-setup:notes
# prints: COLLECTED
# --8<-- [start:final-report]
source env.sh
python scripts/e2e/final_report.py --root "$LAB_ROOT"
sed -n '1,40p' runs/final-report.md
# --8<-- [end:final-report]

# tier: cpu
# needs: final-report
# prints: learning-evidence.tar.gz
# --8<-- [start:archive]
source env.sh
python scripts/e2e/evidence_archive.py
tar -tzf learning-evidence.tar.gz | sed -n '1,20p'
# --8<-- [end:archive]

# Appendix B starts from the baseline: take off what chapter 5 left applied. runs/engine-changes.patch keeps it.
# tier: cpu
# needs: records
# prints: SOURCE PASS
# --8<-- [start:baseline-again]
source env.sh
test ! -s runs/engine-changes.patch || git -C "$NANO_DIR" apply --reverse "$LAB_ROOT/runs/engine-changes.patch"
python scripts/e2e/source_walk.py verify
# --8<-- [end:baseline-again]
