"""Reading the engine's source: is it the pinned one, and where in it does each mechanism live?

Excerpts are located by symbol in the files as they are, so line numbers are always those the reader will see; the same
topics work for nanoengine and for a clone of upstream nano-vLLM.
"""

from .excerpts import Excerpt, excerpts, render
from .topics import TOPICS, Topic
from .verify import UPSTREAM_PIN, changes

__all__ = ["TOPICS", "UPSTREAM_PIN", "Excerpt", "Topic", "changes", "excerpts", "render"]
