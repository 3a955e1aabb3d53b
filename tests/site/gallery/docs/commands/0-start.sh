# tier: cpu
# block: walk-missing
# --8<-- [start:elsewhere]
true elsewhere
# --8<-- [end:elsewhere]
