"""What stands between dorff and the gateway: a proxy that answers late, or that it is too busy, or refuses, or
cuts an answer, or halts."""

from __future__ import annotations

import http.client
import itertools
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What a rule says of a request: "" passes it on. HELD does where it is still waited for; STUCK stops in the middle of
#: the answer; TRICKLED passes that on slowly.
BUSY, CUT, LOST, LATE, EXPIRED = "busy", "cut", "lost", "late", "expired"
DENIED, HELD, STUCK, TRICKLED = "denied", "held", "stuck", "trickled"
ERRORS = {BUSY: (503, "SlowDown"), EXPIRED: (400, "ExpiredToken"), DENIED: (403, "AccessDenied")}
LONG = 4.0  # seconds that these two take


@dataclass(frozen=True)
class Asked:
    """A request: the how manyth of this proxy, its method and path, whether it is a copy, and its size."""

    number: int
    method: str
    path: str
    copy: bool
    size: int = 0


class Proxy:
    """Passes requests on to a port of this machine as `rule` says."""

    def __init__(self, port: int, rule: Callable[[Asked], str]) -> None:
        numbers, lock = itertools.count(), threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with lock:
                    number = next(numbers)
                did = rule(Asked(number, self.command, self.path, "x-amz-copy-source" in self.headers, len(body)))
                if did in ERRORS:
                    status, code = ERRORS[did]
                    self.answer(status, {}, f"<Error><Code>{code}</Code></Error>".encode())
                    return
                if did == LATE:
                    time.sleep(0.05)
                if did == HELD and select.select([self.connection], [], [], 0)[0]:
                    self.close_connection = True
                    return
                upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                try:
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        upstream.putheader(name, value)
                    upstream.endheaders(body)
                    got = upstream.getresponse()
                    content = got.read()
                except OSError:
                    self.close_connection = True
                    return
                finally:
                    upstream.close()
                if did == LOST:
                    self.close_connection = True
                    return
                headers = {n: v for n, v in got.getheaders() if n.lower() not in ("connection", "transfer-encoding")}
                self.answer(got.status, headers, content, how=did)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = pass_on

            def answer(self, status: int, headers: dict[str, str], content: bytes, *, how: str = "") -> None:
                self.send_response_only(status)
                if self.command != "HEAD":
                    headers = {n: v for n, v in headers.items() if n.lower() != "content-length"}
                    headers["Content-Length"] = str(len(content))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                if how == TRICKLED:
                    for at in range(8):
                        self.wfile.write(content[at * len(content) // 8 : (at + 1) * len(content) // 8])
                        time.sleep(LONG / 8)
                    return
                self.wfile.write(content[: len(content) // 2] if how in (CUT, STUCK) else content)
                if how in (CUT, STUCK):
                    self.wfile.flush()
                    time.sleep(LONG if how == STUCK else 0)
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:  # whoever asked is gone
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
