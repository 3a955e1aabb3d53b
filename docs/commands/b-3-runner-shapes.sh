# B.3 From metadata to shapes: what the runner sends, how wide each projection is, where the residual is added.

# ---- B.3.1 what the runner sends ------------------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: InputBuilder.prefill
# --8<-- [start:runner-source]
source env.sh
mkdir -p runs
python scripts/e2e/source_walk.py runner --allow-modified > runs/runner-source.txt
cat runs/runner-source.txt
# --8<-- [end:runner-source]

# tier: cpu
# block: runner-check
# needs: b-2-logs:lifecycle
# prints: PASS
# --8<-- [start:runner-check]
source env.sh
python scripts/e2e/analyze.py runner --log runs/lifecycle.log \
  --out runs/runner-check.json
# --8<-- [end:runner-check]

# tier: cpu
# block: runner-check-chunk, runner-check-prefix
# needs: b-2-logs:chunk
# prints: PASS
# --8<-- [start:runner-history]
source env.sh
python scripts/e2e/analyze.py runner --log runs/chunked-prefill.log \
  --out runs/runner-check-chunk.json
python scripts/labs/03_trace_engine.py --case prefix > runs/prefix-cache.log 2>&1
python scripts/e2e/analyze.py runner --log runs/prefix-cache.log \
  --out runs/runner-check-prefix.json
# --8<-- [end:runner-history]

# tier: gpu reason=检查 GPU 上的日志 | checks the logs made on the GPU
# block: runner-check-gpu, runner-check-chunk-gpu, runner-check-prefix-gpu
# needs: b-2-logs:lifecycle-on-gpu, b-2-logs:chunk-on-gpu
# prints: PASS
# --8<-- [start:runner-on-gpu]
source env.sh
python scripts/e2e/analyze.py runner --log runs/lifecycle-gpu.log \
  --out runs/runner-check-gpu.json
python scripts/e2e/analyze.py runner --log runs/chunked-prefill-gpu.log \
  --out runs/runner-check-chunk-gpu.json
CUDA_VISIBLE_DEVICES=0 python scripts/labs/03_trace_engine.py --case prefix \
  > runs/prefix-cache-gpu.log 2>&1
python scripts/e2e/analyze.py runner --log runs/prefix-cache-gpu.log \
  --out runs/runner-check-prefix-gpu.json
# --8<-- [end:runner-on-gpu]

# ---- B.3.2 shapes and packed weights --------------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: packed_modules_mapping
# prints: load_model
# --8<-- [start:model-source]
source env.sh
mkdir -p runs
python scripts/e2e/source_walk.py model --allow-modified > runs/model-source.txt
cat runs/model-source.txt
# --8<-- [end:model-source]

# tier: cpu
# block: model-shapes
# prints: PASS
# --8<-- [start:shapes-math]
source env.sh
mkdir -p runs
python scripts/e2e/principles.py shapes --tp 1 --out runs/model-shapes.json
# --8<-- [end:shapes-math]

# tier: cpu
# block: model-shapes-check
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:shapes]
source env.sh
mkdir -p runs
python scripts/labs/03_trace_engine.py --case lifecycle --shapes \
  > runs/lifecycle-shapes.log 2>&1
python scripts/e2e/analyze.py shapes --log runs/lifecycle-shapes.log \
  --out runs/model-shapes-check.json
# --8<-- [end:shapes]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: model-shapes-check-gpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:shapes-on-gpu]
source env.sh
mkdir -p runs
CUDA_VISIBLE_DEVICES=0 python scripts/labs/03_trace_engine.py --case lifecycle --shapes \
  > runs/lifecycle-shapes-gpu.log 2>&1
python scripts/e2e/analyze.py shapes --log runs/lifecycle-shapes-gpu.log \
  --out runs/model-shapes-check-gpu.json
# --8<-- [end:shapes-on-gpu]

# ---- B.3.3 the residual in two paths --------------------------------------------------------------------------------

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: same sum True, same norm True
# --8<-- [start:residual]
source env.sh
python - <<'PY'
import torch
from nanolab import sources

norm = sources.resolve().module("layers.layernorm").RMSNorm(4, eps=1e-6)
norm.weight.data.fill_(1)
x, attention_output = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
hidden, residual = norm.add_and_norm(attention_output, x)
h = x + attention_output
print(f"same sum {torch.equal(residual, h)}, same norm {torch.equal(hidden, norm(h))}")
PY
# --8<-- [end:residual]
