"""Every GPU block of the manual in one run: what to run (plan), how (runner, worker), and what comes back (archive).

The programs are the manual's own, with the manual's own options; nothing is measured or judged here. Most run one
after another in one long-lived process (worker), because importing torch would otherwise take longer than they do.
"""

from nanolab.gpu_evidence import archive, host
from nanolab.gpu_evidence.plan import Settings, build_plan
from nanolab.gpu_evidence.runner import Outcome, Run, select
from nanolab.gpu_evidence.step import Program, Server, Step

__all__ = ["Outcome", "Program", "Run", "Server", "Settings", "Step", "archive", "build_plan", "host", "select"]
