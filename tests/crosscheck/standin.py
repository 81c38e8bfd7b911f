"""A stand-in for a server: chats whose chunks come by a script, and a log of when each was written.

Every script has what clients may disagree about, each behind a pause of its own:

    headers and a chunk with a role and no text | the first token | a chunk with three tokens | a chunk without text |
    single tokens | the finish reason | the usage | [DONE] | the end of the body

Nothing is computed: a pause is a sleep. A moment is noted before its bytes are written, and that of the question after
its last byte was read. So from the question to any chunk a client sees at least what the log says, on any machine: it
asked before that, and cannot see what is not written.
"""

import dataclasses
import http.server
import json
import threading
import time

NAME = "stand-in"
# Clients plan other lengths than these: what they report has to be the server's own count.
PROMPT_TOKENS = 1000


@dataclasses.dataclass
class Answer:
    """One answer. Moments are pairs: a monotonic clock, which two of the clients use, and the clock on the wall."""

    index: int
    asked: tuple
    request_id: str  # as the client names it, if it does
    breaks: bool
    prompt_tokens: int
    output_tokens: int = 0
    moments: dict = dataclasses.field(default_factory=dict)
    events: list = dataclasses.field(default_factory=list)  # moments with a token or without text, in order
    texts: list = dataclasses.field(default_factory=list)  # of these, those with text

    @property
    def id(self):
        return f"answer-{self.index}"

    def after(self, name, clock=0):
        """Milliseconds from the question to a moment of the script."""
        return (self.moments[name][clock] - self.asked[clock]) * 1e3


class StandIn:
    """Listens on a free port until it is closed. `breaks`: the index of the answer whose connection breaks."""

    def __init__(self, pause, breaks):
        self.pause, self.breaks = pause, breaks
        self.answers, self.lock = [], threading.Lock()
        handler = type("Handler", (Handler,), {"standin": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def begin(self, asked, request_id):
        with self.lock:
            index = len(self.answers)
            breaks = index == self.breaks
            self.answers.append(Answer(index, asked, request_id, breaks, PROMPT_TOKENS + index))
            return self.answers[-1]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        found = {"/health": {}, "/v1/models": {"object": "list", "data": [{"id": NAME, "object": "model"}]}}
        body = json.dumps(found.get(self.path, {"error": {"message": "no such page"}})).encode()
        self.send_response(200 if self.path in found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.standin.begin((time.monotonic(), time.time()), self.headers.get("X-Request-ID"))
        try:
            self.play(answer)
        except OSError:  # a client may go once it has what it wants
            self.close_connection = True

    def play(self, answer):
        role = {"role": "assistant", "content": ""}
        self.wait()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.delta(answer, "role", role)
        self.wait()
        self.token(answer, "first", " one")
        self.wait()
        if answer.breaks:
            self.close_connection = True
            return self.connection.shutdown(2)
        self.token(answer, "three at once", " two three four", tokens=3)
        self.wait()
        self.delta(answer, "no text", {"content": ""})
        answer.events.append("no text")
        # Answers of different lengths: a mean of requests is not a mean of tokens.
        for number in range(1 + answer.index % 3 * 2):
            self.wait()
            self.token(answer, f"more {number}", " more")
        self.wait()
        self.delta(answer, "finish", {}, finish_reason="stop")
        self.wait()
        usage = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.output_tokens}
        usage["total_tokens"] = sum(usage.values())
        self.event(answer, "usage", json.dumps(self.chunk(answer, choices=[], usage=usage)))
        self.wait()
        self.event(answer, "done", "[DONE]")
        self.wait()
        self.note(answer, "end")
        self.wfile.write(b"0\r\n\r\n")

    def wait(self):
        time.sleep(self.standin.pause)

    def chunk(self, answer, **fields):
        return {"id": answer.id, "object": "chat.completion.chunk", "created": 0, "model": NAME, **fields}

    def token(self, answer, name, text, tokens=1):
        answer.output_tokens += tokens
        answer.events.append(name)
        answer.texts.append(name)
        self.delta(answer, name, {"content": text})

    def delta(self, answer, name, delta, finish_reason=None):
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        self.event(answer, name, json.dumps(self.chunk(answer, choices=[choice])))

    def event(self, answer, name, data):
        event = f"data: {data}\n\n".encode()
        self.note(answer, name)
        self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")

    def note(self, answer, name):
        answer.moments[name] = (time.monotonic(), time.time())
