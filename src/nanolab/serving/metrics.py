"""Prometheus metrics from the event stream. A name is vLLM's exactly where the meaning is the same.

Own registry, so that several servers can live in one process. Runs as a Worker listener, on the event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from nanolab.serving.events import Event, Finished, Reason, Step, Submitted, Token

__all__ = ["Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SUCCESS = {Reason.LENGTH: "length", Reason.EOS: "stop", Reason.STOP: "stop"}


class StepHistogram(Collector):
    """A histogram that takes many equal samples at once: the tokens of one step mostly have the same gap."""

    def __init__(self, name: str, text: str, labels: dict[str, str], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float, times: int) -> None:
        self._counts[bisect_left(SECONDS, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        bounds = [*map(str, SECONDS), "+Inf"]
        upto = [sum(self._counts[: index + 1]) for index in range(len(bounds))]
        family.add_metric(list(self._labels.values()), list(zip(bounds, upto, strict=True)), self._sum)
        yield family


@dataclass(slots=True)
class _Times:
    submitted: int
    last_token: int | None = None


class Metrics:
    def __init__(self, model_id: str) -> None:
        self.registry = CollectorRegistry()
        label = {"model_name": model_id}
        self._times: dict[str, _Times] = {}
        self._unscheduled: set[str] = set()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ["model_name"], registry=self.registry).labels(**label)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ["model_name"], registry=self.registry).labels(**label)

        def histogram(name: str, text: str) -> Histogram:
            metric = Histogram(name, text, ["model_name"], registry=self.registry, buckets=SECONDS)
            return metric.labels(**label)

        self.queued = gauge("nanolab:requests_queued", "Accepted requests that wait for admission")
        self.running = gauge("vllm:num_requests_running", "Requests in the engine's running queue")
        self.waiting = gauge("vllm:num_requests_waiting", "Requests accepted and not running yet")
        self.kv_usage = gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 1 is all")
        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of requests whose prefill is done")
        self.generation_tokens = counter("vllm:generation_tokens", "Output tokens")
        self.steps = counter("nanolab:engine_steps", "Engine steps")
        self.ttft = histogram("vllm:time_to_first_token_seconds", "Submitted to first token")
        itl, text = "vllm:inter_token_latency_seconds", "Gap between two tokens of a request"
        self.itl = StepHistogram(itl, text, label, self.registry)
        self.e2e = histogram("vllm:e2e_request_latency_seconds", "Submitted to finished, complete requests")
        self.queue_time = histogram("vllm:request_queue_time_seconds", "Submitted to first scheduled")
        self._success = Counter(
            "vllm:request_success", "Complete requests", ["model_name", "finished_reason"], registry=self.registry
        )
        self._finished = Counter(
            "nanolab:requests_finished",
            "Requests by the reason of their end",
            ["model_name", "reason"],
            registry=self.registry,
        )
        self._model_id = model_id
        self._prompts: dict[str, int] = {}

    def __call__(self, events: list[Event]) -> None:
        tokens = 0
        gaps: Tally[int] = Tally()
        for event in events:
            if isinstance(event, Token):
                tokens += 1
                self._on_token(event, gaps)
            elif isinstance(event, Step):
                self._on_step(event)
            elif isinstance(event, Submitted):
                assert event.request_id is not None
                self._times[event.request_id] = _Times(event.t_ns)
                self._unscheduled.add(event.request_id)
                self._prompts[event.request_id] = event.prompt_tokens
            elif isinstance(event, Finished):
                self._on_finished(event)
        if tokens:
            self.generation_tokens.inc(tokens)
        for gap, times in gaps.items():
            self.itl.observe(gap / 1e9, times)

    def render(self, queued: int, active: int, kv_usage: float) -> bytes:
        """The text exposition; these three are the worker's now: a cancel changes them without a step."""
        self.kv_usage.set(kv_usage)
        self.queued.set(queued)
        if not active:
            self.running.set(0)
            self.waiting.set(queued)
        return generate_latest(self.registry)

    def _on_step(self, event: Step) -> None:
        self.steps.inc()
        self.running.set(event.running)
        self.waiting.set(max(0, len(self._times) - event.running))
        if self._unscheduled:
            for request_id in self._unscheduled.intersection(row[0] for row in event.batch):
                self._unscheduled.discard(request_id)
                self.queue_time.observe((event.started_ns - self._times[request_id].submitted) / 1e9)

    def _on_token(self, event: Token, gaps: Tally[int]) -> None:
        assert event.request_id is not None
        times = self._times[event.request_id]
        if times.last_token is None:
            self.ttft.observe((event.t_ns - times.submitted) / 1e9)
            self.prompt_tokens.inc(self._prompts[event.request_id])
        else:
            gaps[event.t_ns - times.last_token] += 1
        times.last_token = event.t_ns

    def _on_finished(self, event: Finished) -> None:
        assert event.request_id is not None
        times = self._times.pop(event.request_id, None)
        self._unscheduled.discard(event.request_id)
        self._prompts.pop(event.request_id, None)
        self._finished.labels(model_name=self._model_id, reason=event.reason.value).inc()
        if event.reason in SUCCESS:
            self._success.labels(model_name=self._model_id, finished_reason=SUCCESS[event.reason]).inc()
            if times is not None:
                self.e2e.observe((event.t_ns - times.submitted) / 1e9)
