"""Generation without a cache, every number visible (B.1.4). NumPy only, no arguments.

The network is in src/nanolab/principles/network.py: two blocks, four-wide vectors, six token ids, untrained.
Three tokens are generated from a prompt of three. Watch two things:

    how much    every round feeds the whole sequence again: 3 + 4 + 5 = 12 input positions
    how little  the rows of earlier positions come out as before: that work was done already

Predict first: with a KV cache, how many input positions would the three rounds have? (3 + 1 + 1)
"""

import numpy as np

from nanolab.principles.attention import max_abs_difference
from nanolab.principles.network import Network
from nanolab.principles.sampling import greedy, softmax

np.set_printoptions(precision=4, suppress=True, floatmode="fixed")

network = Network(seed=1)
ids = [0, 3, 5]
total_positions = 0
prefix_error = 0.0
previous_hidden = np.empty((0, 4))

for step in (1, 2, 3):
    forward = network(ids)  # the whole sequence, from position 0
    chosen = greedy(forward.logits)  # from the last row only

    print(f"round {step}: input ids {ids} (length {len(ids)})")
    for position, row in enumerate(forward.hidden):
        known = "computed before" if position < len(previous_hidden) else "new"
        print(f"  hidden[{position}] = {row}  {known}")
    print(f"  score shapes, block by block: {forward.score_shapes}")
    print(f"  probabilities of ids 0..5: {softmax(forward.logits)}")
    print(f"  chosen id: {chosen}")

    if len(previous_hidden):
        earlier_rows = forward.hidden[: len(previous_hidden)]
        prefix_error = max(prefix_error, max_abs_difference(earlier_rows, previous_hidden))
    assert forward.hidden.shape == (len(ids), 4)
    assert forward.score_shapes == [[len(ids), len(ids)]] * 2

    total_positions += len(ids)
    previous_hidden = forward.hidden
    ids = [*ids, chosen]

print(f"causal prefix error = {prefix_error:.1e}")
print(f"total input positions = {total_positions}")

assert prefix_error < 1e-12
assert total_positions == 12

print("CHECK: PASS")
