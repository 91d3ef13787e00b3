"""A stand-in model server: chat completions as OpenAI's, deterministic, with faults on order.

`strict`: a conversation that ends with the assistant's words is refused, as some models do. A user's text that holds
`[[call NAME {…}]]` is answered with that tool call, and its result with words. Who asks is told by the session that the
first envelope was sent to, or by `[[session NAME]]` in a text; requests for titles are answered and not counted.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from tests.opencode.wire import Answer, Request, WireServer

PREFILL = "This model does not support assistant message prefill. The conversation must end with a user message."

_SESSION = re.compile(r'to="(ses_[^"]+)"|\[\[session ([^\]\s]+)\]\]')
_CALL = re.compile(r"\[\[call (\w+) (\{.*?\})\]\]", re.DOTALL)
_TITLE = re.compile(r"title generator|generate a (brief |short )?title", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for an answer: whose, the last user's text, and the tools that were offered."""

    session: str
    text: str
    roles: tuple[str, ...]
    tools: tuple[str, ...]


class ModelServer:
    """The server; `think` is how long an answer takes (seconds), `faults` the statuses of the next answers."""

    def __init__(self, *, strict: bool = False, think: float = 0.0) -> None:
        self.strict = strict
        self.think = think
        self.faults: list[int] = []
        self.asked: list[Asked] = []
        self.prefills = 0
        self.titles = 0
        self.at_once: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self._wire = WireServer(self._handle)

    @property
    def url(self) -> str:
        return self._wire.url

    async def start(self) -> ModelServer:
        """Stopped -> listening."""
        await self._wire.start()
        return self

    async def stop(self) -> None:
        """Listening -> gone."""
        await self._wire.stop()

    async def _handle(self, request: Request) -> Answer:
        if request.method == "GET" and request.parts[-1] == "models":
            return Answer(value={"object": "list", "data": [{"id": "fake-1", "object": "model"}]})
        body = request.json()
        if request.parts[-2:] != ["chat", "completions"] or not isinstance(body, dict):
            return Answer(404, _error("no such route"))
        messages = [message for message in body.get("messages", []) if isinstance(message, dict)]
        texts = [(str(message.get("role")), _text(message)) for message in messages]
        if any(role == "system" and _TITLE.search(text) for role, text in texts):
            self.titles += 1
            return self._answer(body, "A title", None)
        session = _session(texts)
        self.at_once[session] += 1
        self.peak[session] = max(self.peak[session], self.at_once[session])
        try:
            return await self._asked(body, session, texts)
        finally:
            self.at_once[session] -= 1

    async def _asked(self, body: dict[str, Any], session: str, texts: list[tuple[str, str]]) -> Answer:
        users = [text for role, text in texts if role == "user"]
        last = users[-1] if users else ""
        tools = tuple(str(tool.get("function", {}).get("name")) for tool in body.get("tools") or ())
        self.asked.append(Asked(session, last, tuple(role for role, _ in texts), tools))
        await asyncio.sleep(self.think)
        if self.faults:
            return Answer(self.faults.pop(0), _error("ordered by the test"))
        if self.strict and texts and texts[-1][0] == "assistant":
            self.prefills += 1
            return Answer(400, _error(PREFILL))
        call = _CALL.search(last)
        if call is not None and texts[-1][0] != "tool":
            return self._answer(body, "", (call.group(1), call.group(2)))
        return self._answer(body, f"Read: {last[-200:]}", None)

    def _answer(self, body: dict[str, Any], text: str, call: tuple[str, str] | None) -> Answer:
        number, model = len(self.asked) + self.titles, body.get("model", "fake-1")
        finish = "stop" if call is None else "tool_calls"
        said: dict[str, Any] = {"role": "assistant", "content": text}
        if call is not None:
            function = {"name": call[0], "arguments": call[1]}
            said["tool_calls"] = [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": f"chat-{number}", "created": 1_800_000_000, "model": model}
        if not body.get("stream"):
            choice = {"index": 0, "message": said, "finish_reason": finish}
            return Answer(value={**head, "object": "chat.completion", "choices": [choice], "usage": usage})

        async def stream() -> AsyncGenerator[str]:
            for delta, end in ((said, None), ({}, finish)):
                choice = {"index": 0, "delta": delta, "finish_reason": end}
                more = {"usage": usage} if end else {}
                yield _event({**head, "object": "chat.completion.chunk", "choices": [choice], **more})
            yield "data: [DONE]\n\n"

        return Answer(stream=stream(), content_type="text/event-stream")


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _error(words: str) -> dict[str, Any]:
    return {"error": {"message": words, "type": "invalid_request_error", "param": None, "code": None}}


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _session(texts: list[tuple[str, str]]) -> str:
    for role, text in texts:
        found = _SESSION.search(text) if role == "user" else None
        if found is not None:
            return found.group(1) or found.group(2)
    return "?"
