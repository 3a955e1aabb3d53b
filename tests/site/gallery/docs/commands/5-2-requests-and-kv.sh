# tier: cpu
# block: walk-A, walk-missing
# --8<-- [start:walk]
source env.sh
python scripts/e2e/quick_walk.py --case A --out runs/walk-A.json
# --8<-- [end:walk]

# tier: gpu reason=回放 CUDA Graph | replays CUDA graphs
# --8<-- [start:graph]
python scripts/e2e/quick_walk.py --case A --device cuda --a-rather-long-option-name 1234567890 --another 1234567890
# --8<-- [end:graph]
