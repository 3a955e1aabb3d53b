"""`run.py serve`: the HTTP server with its engine and its event log, from options to a closed log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nanolab.evidence import check_writable
from nanolab.serving.eventlog import EventLog
from nanolab.serving.events import RunHeader
from nanolab.serving.launch import EngineOptions, Launch, prepare, run_header
from nanolab.serving.lifecycle import WorkerLimits
from nanolab.serving.server import ServeOptions, serve
from nanolab.serving.service import ServerSettings
from nanolab.serving.worker import Worker

__all__ = ["serve_logged"]


async def serve_logged(
    engine: EngineOptions,
    out: Path,
    *,
    host: str,
    port: int,
    worker_id: str,
    served_model_name: str | None,
    drain_s: float,
    send_timeout_s: float,
    stream_capacity: int,
    max_active: int,
    max_queued: int,
    on_ready: Callable[[str], None],
    announce: Callable[..., None],
) -> str | None:
    """Serve until a signal; returns None, or why the engine failed. The log is complete unless it did."""
    check_writable(out)
    launch = prepare(engine)
    options = ServeOptions(
        host=host,
        port=port,
        worker_id=worker_id,
        model_id=served_model_name or launch.model_id,
        model_root=launch.model_root,
        limits=WorkerLimits(max_active, max_queued, stream_capacity),
        settings=ServerSettings(send_timeout_s=send_timeout_s),
        drain_s=drain_s,
    )
    log: EventLog | None = None

    def on_started(worker: Worker) -> None:
        nonlocal log
        facts = worker.facts
        header = _header(launch, worker)
        options.facts.update(launch.revealed(facts))
        options.facts["evidence"] = header.evidence
        options.facts["runs_on"] = {"engine": header.engine, "model": header.model, "device": header.device}
        log = EventLog(out, header)
        worker.add_listener(log.write)
        announce(engine=launch.engine["kind"], device=facts.device, attention=facts.attention_backend)

    failure: str | None = "the server did not start"
    try:
        failure = await serve(launch.create, options, on_started=on_started, on_ready=lambda url, worker: on_ready(url))
    finally:
        if log is not None:
            log.close(complete=failure is None, note=failure)
    return failure


def _header(launch: Launch, worker: Worker) -> RunHeader:
    facts, limits = worker.facts, worker.limits
    config = launch.revealed(facts) | {
        "mode": "serve",
        "worker_id": worker.worker_id,
        "max_active": limits.max_active,
        "max_queued": limits.max_queued,
        "stream_capacity": limits.stream_capacity,
        "max_model_len": facts.max_model_len,
        "batch_tokens": launch.options.batch_tokens,
        "batch_seqs": launch.options.batch_seqs,
        "block_size": facts.block_size,
        "num_blocks": facts.num_blocks,
        "attention_backend": facts.attention_backend,
    }
    return run_header(
        evidence=launch.evidence(facts),
        launch=launch,
        device=facts.device,
        config=config,
        simulated=launch.options.simulated,
    )
