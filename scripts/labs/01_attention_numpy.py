"""Lab 01: why a KV cache is allowed to exist (B.1.2). NumPy only, no arguments, a fraction of a second.

Three observations on one head with Q = K = V = X. The formula itself is `attention` in
src/nanolab/principles/attention.py: read its twenty lines first.

Predict, then try: set CAUSAL to False. Which assertion fails first, and why must it?
"""

import numpy as np

from nanolab.principles.attention import attention, max_abs_difference

CAUSAL = True
X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # [3 positions, d = 2]

np.set_printoptions(precision=4, suppress=True)

# 1. Position i mixes the values of positions 0..i: the weights are lower triangular.

full = attention(X, X, X, CAUSAL)
print("weights rows:")
for row in full.weights:
    print(row)
print("last output:", full.output[-1])

assert np.allclose(full.weights, [[1.0, 0, 0], [0.3302, 0.6698, 0], [0.2483, 0.2483, 0.5035]], atol=5e-5)
assert np.allclose(full.output[-1], [0.7517, 0.7517], atol=5e-5)

# 2. Change the future: rewrite the last position. Earlier outputs do not move, not even in the last bit.

rewritten = X.copy()
rewritten[-1] = [9.0, -5.0]
unchanged = np.array_equal(attention(rewritten, rewritten, rewritten, CAUSAL).output[:-1], full.output[:-1])
print("future change leaves earlier positions unchanged:", unchanged)

assert unchanged

# 3. Therefore old rows need not be computed again. Append a position and compute it both ways:
#    full    every position asks again; only the last answer is news
#    cached  the keys and values of old positions are kept, and only the new position asks

extended = np.vstack([X, [0.5, 1.0]])
k = v = extended  # with a cache: three kept rows, and the new one appended
recomputed = attention(extended, k, v, CAUSAL)
cached = attention(extended[-1:], k, v, CAUSAL)
error = max_abs_difference(recomputed.output[-1], cached.output[-1])
print("cached last output:", cached.output[-1])
print("max error:", error)
print(f"query positions: full={len(recomputed.output)}, cached={len(cached.output)}; KV positions={len(k)}")

assert np.allclose(cached.output[-1], [0.6304, 0.8374], atol=5e-5)
assert error < 1e-12

print("CHECK: PASS")
