"""The small exact computations of appendix B: NumPy and integers, no model weights, no GPU.

Each module is one idea that a reader can check by hand; each function states its formula and its source. The
scripts, the notebooks and the figures all call these functions, so that a formula is written once.

    sampling    scores -> probabilities -> one token
    attention   causal attention of one head, with or without a history of keys and values
    generation  which positions enter each round, without and with a KV cache
    network     a two-block network small enough to print, that recomputes everything every round
    shape       the sizes of a model
    layout      position -> block table -> slot; widths under tensor parallelism
    memory      bytes of the KV cache, and how many requests fit
    text        what a tokenizer does to one fixed Chinese-English text
"""
