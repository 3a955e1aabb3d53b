"""Is this host ready for the lab? One JSON document on stdout, the verdict as the last line of stderr.

python scripts/e2e/doctor.py | tee runs/setup-doctor.json
python scripts/e2e/doctor.py --cpu        # judge CPU readiness only
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn


def _not_installed(error: ModuleNotFoundError) -> NoReturn:
    """Even without its own packages the doctor says what is wrong, in its own format."""
    fix = "python -m pip install -r requirements-cpu.txt && python -m pip install -e . --no-deps"
    row = {
        "name": "packages",
        "needed_for": "cpu",
        "status": "FAIL",
        "observed": f"no module named {error.name!r} in {sys.executable}",
        "expected": "the packages of requirements-cpu.txt and nanolab itself",
        "fix": fix,
    }
    verdicts = {"check": "FAIL", "cpu_readiness": "FAIL", "gpu_readiness": "FAIL"}
    summary = f"Not ready: {fix}"
    print(json.dumps({**verdicts, "summary": summary, "available_now": [], "checks": [row]}, indent=2))
    print("FAIL", file=sys.stderr)
    raise SystemExit(1)


try:
    import click

    from nanolab import doctor
    from nanolab.cli import out_option, source_option
    from nanolab.evidence import Recording, describe_device, repo_root
    from nanolab.verdicts import EvidenceType
except ModuleNotFoundError as missing:
    _not_installed(missing)


@click.command(help=__doc__)
@click.option("--cpu", "cpu_only", is_flag=True, help="Judge CPU readiness only: exit 0 when the CPU part is ready.")
@click.option("--model", type=click.Path(path_type=Path), envvar="MODEL_DIR", help="Model directory (MODEL_DIR).")
@source_option
@out_option
def main(cpu_only: bool, model: Path | None, source: Path | None, out: Path | None) -> None:
    root = repo_root()
    with Recording(
        out.stem if out else "setup-doctor",
        title_en="Readiness of this host",
        title_zh="本机就绪检查",
        out=out,
        sources=[doctor],
        verdict_on_stderr=True,
    ) as rec:
        report = doctor.examine(doctor.Examination(doctor.Host(root), model, source), cpu_only)
        document = report.document()
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
        computed = report.computed_on_gpu
        rec.device = describe_device("cuda" if computed else "cpu")
        rec.config["cpu_only"] = cpu_only
        rec.result.update(document)
        rec.volatile += ["checks"]  # free memory, free disk, versions: this host's, today's
        rec.finish(report.verdict, EvidenceType.GPU if computed else EvidenceType.STATIC)


if __name__ == "__main__":
    main()
