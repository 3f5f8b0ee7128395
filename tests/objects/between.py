"""What stands between dorff and the gateway: a proxy that answers late, or that it is too busy, or cuts an answer."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What a rule says of a request: "" passes it on.
BUSY, CUT, LOST, LATE, EXPIRED = "busy", "cut", "lost", "late", "expired"
ERRORS = {BUSY: (503, "SlowDown"), EXPIRED: (400, "ExpiredToken")}


@dataclass(frozen=True)
class Asked:
    """A request: the how manyth of this proxy, its method and path, and whether it is a copy."""

    number: int
    method: str
    path: str
    copy: bool


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
                did = rule(Asked(number, self.command, self.path, "x-amz-copy-source" in self.headers))
                if did in ERRORS:
                    status, code = ERRORS[did]
                    self.answer(status, {}, f"<Error><Code>{code}</Code></Error>".encode())
                    return
                if did == LATE:
                    time.sleep(0.05)
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
                self.answer(got.status, headers, content, cut=did == CUT)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = pass_on

            def answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
                self.send_response_only(status)
                if self.command != "HEAD":
                    headers = {n: v for n, v in headers.items() if n.lower() != "content-length"}
                    headers["Content-Length"] = str(len(content))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content[: len(content) // 2] if cut else content)
                if cut:
                    self.wfile.flush()
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
