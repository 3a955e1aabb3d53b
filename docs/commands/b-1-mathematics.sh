# B.1 Mathematics and cache equivalence: arithmetic to check by hand, then a real model with and without a cache.

# ---- the text to read first -----------------------------------------------------------------------------------------

# tier: cpu
# prints: B.1.1
# --8<-- [start:read]
source env.sh
sed -n '1,150p' scripts/e2e/principles.py
# --8<-- [end:read]

# ---- B.1.1 tokens and sampling --------------------------------------------------------------------------------------

# tier: cpu
# block: tokenizer
# prints: PASS
# --8<-- [start:tokenizer]
source env.sh
mkdir -p runs
python scripts/e2e/principles.py tokenizer --out runs/tokenizer.json
# --8<-- [end:tokenizer]

# tier: doc reason=只下载分词器的几个文件，需要网络 | downloads the tokenizer files only, needs the network
# --8<-- [start:tokenizer-real]
source env.sh
python scripts/e2e/download_model.py --model models/qwen3-tokenizer
python scripts/e2e/principles.py tokenizer --model models/qwen3-tokenizer --out runs/tokenizer-qwen3.json
# --8<-- [end:tokenizer-real]

# The answer of the exercise: a temperature divides the scores before the softmax.
# tier: cpu
# prints: 0.86
# --8<-- [start:temperature]
source env.sh
python - <<'PY'
import numpy as np
from nanolab.principles.sampling import softmax

for temperature in (0.5, 1.0, 2.0):
    print(temperature, softmax(np.array([2, 1, 0]) / temperature).round(4))
PY
# --8<-- [end:temperature]

# ---- B.1.2 causal attention by hand ---------------------------------------------------------------------------------

# tier: cpu
# block: attention
# prints: PASS
# --8<-- [start:attention]
source env.sh
mkdir -p runs
python scripts/e2e/principles.py attention --out runs/attention.json
# --8<-- [end:attention]

# tier: cpu
# prints: future change leaves earlier positions unchanged: True
# prints: CHECK: PASS
# --8<-- [start:attention-lab]
source env.sh
mkdir -p runs
python scripts/labs/01_attention_numpy.py | tee runs/attention-reference.log
# --8<-- [end:attention-lab]

# The answer of the exercise: the same lab without the mask, in a copy. It must fail.
# tier: cpu
# expect: 1
# prints: AssertionError
# --8<-- [start:attention-unmasked]
source env.sh
mkdir -p runs
sed 's/^CAUSAL = True/CAUSAL = False/' scripts/labs/01_attention_numpy.py \
  > runs/attention-unmasked.py
python runs/attention-unmasked.py
# --8<-- [end:attention-unmasked]

# ---- B.1.3 known tokens and KV --------------------------------------------------------------------------------------

# tier: cpu
# block: generation-timeline
# prints: PASS
# --8<-- [start:timeline]
source env.sh
mkdir -p runs
python scripts/e2e/principles.py timeline --out runs/generation-timeline.json
# --8<-- [end:timeline]

# ---- B.1.4 what a cache saves ---------------------------------------------------------------------------------------

# tier: cpu
# block: kv-cache-math
# prints: PASS
# --8<-- [start:cache]
source env.sh
mkdir -p runs
python scripts/e2e/principles.py cache --out runs/kv-cache-math.json
# --8<-- [end:cache]

# tier: cpu
# prints: max error: 0.0
# --8<-- [start:cache-equivalence]
source env.sh
mkdir -p runs
python scripts/labs/01_attention_numpy.py > runs/attention-cache-equivalence.log
tail -n 4 runs/attention-cache-equivalence.log
# --8<-- [end:cache-equivalence]

# tier: cpu
# prints: total input positions = 12
# prints: CHECK: PASS
# --8<-- [start:uncached]
source env.sh
mkdir -p runs
python scripts/pedagogy/00_uncached_walkthrough.py | tee runs/uncached-walkthrough.txt
# --8<-- [end:uncached]

# ---- B.1.5 memory, latency, throughput ------------------------------------------------------------------------------

# tier: cpu
# block: memory-budget
# prints: PASS
# --8<-- [start:memory]
source env.sh
mkdir -p runs
python scripts/e2e/principles.py memory --out runs/memory-budget.json
# --8<-- [end:memory]

# The answer of the exercise: the same card with requests of 1,000 tokens, and with blocks of 16 positions.
# tier: cpu
# prints: 256 1000 434
# --8<-- [start:memory-exercise]
source env.sh
python - <<'PY'
from nanolab.principles.memory import GB, GIB, Budget

for block_size in (256, 16):
    card = Budget(16 * GIB, 12 * GB // 10, 3 * GIB, block_size=block_size, tokens_per_request=1000)
    print(block_size, card.tokens_per_request, card.pool_blocks, card.blocks_per_request, card.requests)
PY
# --8<-- [end:memory-exercise]

# ---- B.1.6 real logits, with and without a cache --------------------------------------------------------------------

# tier: cpu
# block: cached-forward, cached-forward-check
# prints: PASS
# --8<-- [start:cached-forward]
source env.sh
mkdir -p runs
python scripts/labs/02_cached_forward.py --device cpu \
  --prompt-len 64 --steps 8 --repeats 3 \
  --out runs/cached-forward.json 2>&1 | tee runs/cached-forward.log
python scripts/e2e/analyze.py cache --log runs/cached-forward.log \
  --out runs/cached-forward-check.json
# --8<-- [end:cached-forward]

# tier: gpu reason=在 GPU 上量两条路的时间 | times both paths on the GPU
# block: cached-forward-gpu, cached-forward-check-gpu
# prints: PASS
# --8<-- [start:cached-forward-on-gpu]
source env.sh
mkdir -p runs
CUDA_VISIBLE_DEVICES=0 python scripts/labs/02_cached_forward.py --device cuda \
  --prompt-len 64 --steps 8 --repeats 3 \
  --out runs/cached-forward-gpu.json 2>&1 | tee runs/cached-forward-gpu.log
python scripts/e2e/analyze.py cache --log runs/cached-forward-gpu.log \
  --out runs/cached-forward-check-gpu.json
# --8<-- [end:cached-forward-on-gpu]

# tier: cpu
# block: cached-forward-128-check
# prints: PASS
# --8<-- [start:cached-forward-128]
source env.sh
mkdir -p runs
python scripts/labs/02_cached_forward.py --device cpu \
  --prompt-len 128 --steps 8 --repeats 3 2>&1 | tee runs/cached-forward-128.log
python scripts/e2e/analyze.py cache --log runs/cached-forward-128.log \
  --out runs/cached-forward-128-check.json
# --8<-- [end:cached-forward-128]

# tier: gpu reason=在 GPU 上量两条路的时间 | times both paths on the GPU
# block: cached-forward-128-gpu, cached-forward-128-check-gpu
# prints: PASS
# --8<-- [start:cached-forward-128-on-gpu]
source env.sh
mkdir -p runs
CUDA_VISIBLE_DEVICES=0 python scripts/labs/02_cached_forward.py --device cuda \
  --prompt-len 128 --steps 8 --repeats 3 \
  --out runs/cached-forward-128-gpu.json 2>&1 | tee runs/cached-forward-128-gpu.log
python scripts/e2e/analyze.py cache --log runs/cached-forward-128-gpu.log \
  --out runs/cached-forward-128-check-gpu.json
# --8<-- [end:cached-forward-128-on-gpu]
