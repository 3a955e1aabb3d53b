"""`run.py client`: one request over HTTP, its text shown as it comes, what this client saw recorded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from nanolab.evidence import check_writable
from nanolab.load.inprocess import client_stamp
from nanolab.load.remote import BROKEN, connect
from nanolab.load.wire import Call, Done, Refused, stream_native
from nanolab.serving.eventlog import EventLog
from nanolab.serving.events import Chunk, Ended, Reason, Sent, now_ns
from nanolab.serving.launch import run_header
from nanolab.verdicts import EvidenceType

__all__ = ["run_client"]


async def run_client(
    endpoint: str,
    prompt: str,
    max_tokens: int,
    request_id: str,
    cancel_after: int | None,
    out: Path,
    show: Callable[[str], None],
) -> Ended:
    """Send, read to the end, cancel after the k-th token if asked; returns the terminal record."""
    check_writable(out)
    async with connect([endpoint], "native") as (http, replicas):
        replica = replicas[0]
        revealed = replica.revealed
        evidence = revealed.get("evidence")
        header = run_header(
            evidence=EvidenceType(evidence) if evidence else None,
            simulated=bool(revealed.get("simulated")),
            config={name: revealed.get(name) for name in ("policy", "tensor_parallel_size", "execution")}
            | {"mode": "client", "endpoints": [replica.url], "replicas": 1},
        )
        header = msgspec.structs.replace(header, **(revealed.get("runs_on") or {}))
        with EventLog(out, header) as log:
            one = OneRequest(http, replica.url, request_id, cancel_after, show)
            return await one.run(Call(request_id, prompt, max_tokens, ignore_eos=False), log)


class OneRequest:
    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        request_id: str,
        cancel_after: int | None,
        show: Callable[[str], None],
    ) -> None:
        self.http, self.url, self.request_id = http, url, request_id
        self.cancel_after, self.show = cancel_after, show
        self.seen = 0
        self.cancel: asyncio.Task[None] | None = None

    def stamp(self) -> dict[str, Any]:
        return client_stamp(self.request_id, self.url)

    async def run(self, call: Call, log: EventLog) -> Ended:
        stamp = self.stamp()
        sent = Sent(**stamp, planned_ns=now_ns(), prompt_tokens=None, max_tokens=call.max_tokens, endpoint=self.url)
        log.write([sent])
        done = Done(Reason.ERROR, "the stream ended without a terminal message")
        status: int | None = 200
        try:
            done = await self._read(call, log) or done
        except Refused as refusal:
            done, status = Done(Reason.REJECTED, str(refusal)), refusal.status
        except BROKEN as error:
            done, status = Done(Reason.ERROR, f"the connection broke: {error}"), None
        finally:
            if self.cancel is not None:
                with contextlib.suppress(*BROKEN):
                    await self.cancel
        tokens = self.seen if done.output_tokens is None else done.output_tokens
        end = Ended(**self.stamp(), reason=done.reason, output_tokens=tokens, status=status, message=done.message)
        log.write([end])
        return end

    async def _read(self, call: Call, log: EventLog) -> Done | None:
        done: Done | None = None
        async with contextlib.aclosing(stream_native(self.http, self.url, call)) as items:
            async for item in items:
                if isinstance(item, Done):
                    done = item
                    continue
                self.seen += item.tokens or 0
                log.write([Chunk(**self.stamp(), tokens=item.tokens)])
                self.show(item.text)
                if self.cancel_after is not None and self.seen >= self.cancel_after and self.cancel is None:
                    self.cancel = asyncio.create_task(self._post_cancel())
        return done

    async def _post_cancel(self) -> None:
        async with self.http.post(f"{self.url}/cancel", json={"request_id": self.request_id}) as response:
            await response.read()
