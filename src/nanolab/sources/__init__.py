"""Which engine a script drives: the bundled one, the learner's working copy, or a clone of upstream nano-vLLM.

    source = resolve(path)                 # --source, else $NANO_DIR if it exists, else the bundled engine
    driver = source.create_engine(model)   # a live engine behind one interface, whatever its package

Nothing else in nanolab imports an engine by name.
"""

from .driver import EngineDriver, SamplingSpec, SeqState, StepRecord
from .engine_source import EngineSource, resolve

__all__ = ["EngineDriver", "EngineSource", "SamplingSpec", "SeqState", "StepRecord", "resolve"]
