# B.7 Multi-turn: what a second turn finds in the cache, read from token ids.

# tier: cpu
# block: multi-turn
# needs: 5-1-setup:working-copy
# prints: R2 hit
# prints: PASS
# --8<-- [start:multi-turn]
source env.sh
mkdir -p runs
python scripts/labs/05_multi_turn.py --max-tokens 8 --out runs/multi-turn.json \
  > runs/multi-turn.log 2>&1
cut -c 1-100 runs/multi-turn.log
# --8<-- [end:multi-turn]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: multi-turn-gpu
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:multi-turn-on-gpu]
source env.sh
mkdir -p runs
CUDA_VISIBLE_DEVICES=0 python scripts/labs/05_multi_turn.py --max-tokens 32 \
  --out runs/multi-turn-gpu.json > runs/multi-turn-gpu.log 2>&1
cut -c 1-100 runs/multi-turn-gpu.log
# --8<-- [end:multi-turn-on-gpu]

# The answer of the exercise: the same conversation with blocks of 16 positions.
# tier: cpu
# block: multi-turn-16
# needs: 5-1-setup:working-copy
# prints: PASS
# --8<-- [start:multi-turn-16]
source env.sh
mkdir -p runs
python scripts/labs/05_multi_turn.py --block-size 16 --max-tokens 8 \
  --out runs/multi-turn-16.json > runs/multi-turn-16.log 2>&1
grep -A 6 '^turn' runs/multi-turn-16.log | cut -c 1-100
tail -n 1 runs/multi-turn-16.log
# --8<-- [end:multi-turn-16]
