# B.8 Quick reference: the few commands that a reference needs.

# The lab's own formulas on the example of the page.
# tier: cpu
# prints: TTFT 120.0 ms
# prints: ITL [40.0, 50.0, 40.0] ms
# prints: TPOT 43.33 ms
# --8<-- [start:metrics]
source env.sh
python - <<'PY'
from nanolab.report.metrics import itl_ms, throughput_of, tpot_ms, ttft_ms
from nanolab.report.records import RequestRecord

arrivals = [(ms * 1_000_000, 1) for ms in (120, 160, 210, 250)]
request = RequestRecord("R1", "engine", arrivals=arrivals, ended_ns=250_000_000,
                        reason="length", output_tokens=4)
print(f"TTFT {ttft_ms(request):.1f} ms")
print(f"ITL {itl_ms(request)} ms")
print(f"TPOT {tpot_ms(request):.2f} ms")
print(f"throughput {throughput_of([request])['tokens_per_s']} tokens/s")
PY
# --8<-- [end:metrics]

# tier: gpu reason=三个数都来自 GPU 的显存 | all three numbers are about GPU memory
# needs: 5-1-setup:working-copy
# prints: driver sees used
# --8<-- [start:three-numbers]
source env.sh
CUDA_VISIBLE_DEVICES=0 python - <<'PY'
import os
from pathlib import Path

import torch
from nanolab import sources

model = Path(os.environ["MODEL_DIR"])
options = {"enforce_eager": True, "max_model_len": 1024, "gpu_memory_utilization": 0.5}
with sources.resolve().create_engine(model, **options) as driver:
    free, total = torch.cuda.mem_get_info()
    pool = driver.engine.model_runner.kv_cache
    rows = {
        "KV pool": pool.numel() * pool.element_size(),
        "memory_allocated": torch.cuda.memory_allocated(),
        "memory_reserved": torch.cuda.memory_reserved(),
        "driver sees used": total - free,
    }
    for name, value in rows.items():
        print(f"{name:16} {value / 2**30:6.2f} GiB")
    print(f"free blocks      {driver.free_blocks} of {driver.num_blocks}")
PY
# --8<-- [end:three-numbers]

# tier: cpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:smallest]
source env.sh
python scripts/e2e/quick_walk.py --case A --trace
# --8<-- [end:smallest]
