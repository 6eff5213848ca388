"""Server with OpenAI's API. The names of its models say how they respond."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROMPT_TOKENS = 11
# Tokens of a complete response.
OUTPUT_TOKENS = 22
WORDS = ["one ", "two ", "three ", "four "]


class Models:
    """State of the models: `answer` responds; `fail` responds with 500, `refuse` with 400; `once`
    fails every other time; `wait` responds once `may_answer` is set; `drip` streams two words and
    then waits; `tear` does so and then closes the connection; `mute` streams without reporting
    usage.
    """

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        # Numbers of requests, and of requests that wait.
        self.requests = 0
        self.waiting = 0
        self._lock = threading.Lock()
        self._fails = False

    def count(self) -> None:
        with self._lock:
            self.requests += 1

    def wait(self) -> None:
        with self._lock:
            self.waiting += 1
        self.may_answer.wait(60)
        with self._lock:
            self.waiting -= 1

    def fails_this_time(self) -> bool:
        with self._lock:
            self._fails = not self._fails
            return self._fails


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    models: Models

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model = body["model"]
        self.models.count()
        if model == "fail" or (model == "once" and self.models.fails_this_time()):
            self._send(500, {"error": {"message": "broken", "type": "server_error"}})
        elif model == "refuse":
            self._send(400, {"error": {"message": "no", "type": "invalid_request_error"}})
        elif body.get("stream"):
            self._stream(body)
        else:
            if model == "wait":
                self.models.wait()
            self._send(200, self._answer(body))

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        usage = {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": OUTPUT_TOKENS,
            "total_tokens": PROMPT_TOKENS + OUTPUT_TOKENS,
        }
        if self.path.endswith("/embeddings"):
            del usage["completion_tokens"]
            usage["total_tokens"] = PROMPT_TOKENS
            vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
            return {"object": "list", "data": [vector], "model": body["model"], "usage": usage}
        if self.path.endswith("/responses"):
            return self._response(body)
        message = {"role": "assistant", "content": "".join(WORDS)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        if self.path.endswith("/completions") and "chat" not in self.path:
            choice = {"index": 0, "text": "".join(WORDS), "finish_reason": "stop"}
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [choice],
            "usage": usage,
        }

    def _response(self, body: dict[str, Any]) -> dict[str, Any]:
        text = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
        message = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": body["model"],
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": PROMPT_TOKENS,
                "output_tokens": OUTPUT_TOKENS,
                "total_tokens": PROMPT_TOKENS + OUTPUT_TOKENS,
            },
        }

    def _stream_response(self, body: dict[str, Any]) -> None:
        completed = self._response(body)
        started = completed | {"status": "in_progress", "output": [], "usage": None}
        item = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        events = [
            {"type": "response.created", "response": started},
            *({"type": "response.output_text.delta", "delta": word, **item} for word in WORDS),
            {"type": "response.completed", "response": completed},
        ]
        for number, event in enumerate(events):
            data = json.dumps({"sequence_number": number, **event}).encode()
            self._chunk(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), data))
        self._chunk(b"")

    def _stream(self, body: dict[str, Any]) -> None:
        model = body["model"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.path.endswith("/responses"):
            self._stream_response(body)
            return
        for number, word in enumerate(WORDS):
            if (model == "drip" and number == 2) or (model == "wait" and number == 0):
                self.models.wait()
            if model == "tear" and number == 2:
                self.models.wait()
                self.close_connection = True
                return
            if self.path.endswith("/chat/completions"):
                choice = {"index": 0, "delta": {"role": "assistant", "content": word}}
            else:
                choice = {"index": 0, "text": word}
            self._event(body, [choice])
        self._event(body, [{"index": 0, "delta": {}, "finish_reason": "stop"}])
        if (body.get("stream_options") or {}).get("include_usage") and model != "mute":
            self._event(body, [], usage=self._answer(body)["usage"])
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, body: dict[str, Any], choices: list[Any], **options: Any) -> None:
        event = {
            "id": "1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body["model"],
            "choices": choices,
            **options,
        }
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle(self) -> None:
        with suppress(OSError):  # the client has disconnected
            super().handle()


@contextmanager
def serving(models: Models) -> Iterator[str]:
    """Serves the models and yields the base URL."""
    handler = type("Handler", (Handler,), {"models": models})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        models.may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()
