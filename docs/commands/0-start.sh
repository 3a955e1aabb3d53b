# The start page: the two commands of the repository, and the first walk.

# tier: doc reason=makes a virtual environment and installs the pinned packages; CI runs it as a job of its own
# --8<-- [start:lab]
make lab
# --8<-- [end:lab]

# tier: doc reason=runs the whole test suite; CI runs it as a job of its own
# --8<-- [start:test]
make test
# --8<-- [end:test]

# tier: cpu
# block: quick-A
# prints: PASS
# --8<-- [start:first-walk]
source env.sh
python scripts/e2e/quick_walk.py --case A --out runs/quick-A.json
# --8<-- [end:first-walk]
