"""Live server: the page of a run, its figures as JSON, and metrics, on 127.0.0.1 for those who know the token.

One daemon thread answers one request after the other from what the sampler saw last; it never looks at the run. The
token is in the address, or in a header "Authorization: Bearer TOKEN", as Prometheus sends one.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from typing import Any, ClassVar, final
from urllib.parse import parse_qs, urlsplit

from elbowroom.errors import UsageError
from elbowroom.live.prometheus import CONTENT_TYPE, metrics
from elbowroom.live.sampling import Sampler

HOST = "127.0.0.1"
PATIENCE_S = 2.0
"""Seconds that a client may take for its request: the others wait meanwhile."""
POLL_S = 0.2
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"

Answer = tuple[str, str]
"""Type and text of an answer."""


@final
class LiveServer:
    """Serves the figures of a run until it is closed.

    Args:
        sampler: has the figures.
        port: port on 127.0.0.1; 0 takes a free one.

    Attributes:
        token: what each request must have.

    Raises:
        UsageError: the port is not free, or not allowed to this user.
    """

    def __init__(self, sampler: Sampler, port: int) -> None:
        self.token = secrets.token_urlsafe(24)
        self._sampler = sampler
        page = files("elbowroom.live").joinpath("live_page.html").read_text("utf-8")
        self._answers: dict[str, Callable[[], Answer]] = {
            "/": lambda: ("text/html; charset=utf-8", page),
            "/figures": lambda: ("application/json", json.dumps(sampler.figures.as_json())),
            "/points": lambda: ("application/json", json.dumps(list(sampler.points))),
            "/metrics": lambda: (CONTENT_TYPE, metrics(sampler.figures.as_json())),
        }
        try:
            self._server = _Server(port, self._answers, self.token)
        except (OSError, OverflowError) as problem:
            raise UsageError(
                f"--live-port: given {port}; allowed is a free port from 1024 to 65535, or 0 for any: {problem}; give "
                "another one"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), daemon=True)
        self._thread.name = "elbowroom-page"
        self._thread.start()

    @property
    def port(self) -> int:
        """Its port."""
        return self._server.server_port

    @property
    def address(self) -> str:
        """Address of the page, with the token."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def close(self) -> None:
        """Answer no more requests."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(HTTPServer):
    """A server that knows the answers, and keeps its errors to itself: they would mix with what the script writes."""

    def __init__(self, port: int, answers: dict[str, Callable[[], Answer]], token: str) -> None:
        self.answers, self.token = answers, token
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Bind without a look at the name of this computer, which may ask the network."""
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = HOST, self.socket.getsockname()[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Forget a client that went away, or asked nothing."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET."""

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = PATIENCE_S
    server_version: ClassVar[str] = "elbowroom"  # pyright: ignore[reportIncompatibleVariableOverride]
    sys_version: ClassVar[str] = ""  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        """Answer, if the token is right."""
        asked = urlsplit(self.path)
        if not self._may_read(asked.query):
            self._send(HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", "403: the token is missing or wrong\n")
            return
        answer = self.server.answers.get(asked.path)
        if answer is None:
            there = ", ".join(self.server.answers)
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"404: there are {there}\n")
            return
        self._send(HTTPStatus.OK, *answer())

    def _may_read(self, query: str) -> bool:
        given = parse_qs(query).get("token", [""])[-1]
        kind, _, credentials = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            given = credentials
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": POLICY,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the standard library
        """Write nothing: the terminal is the script's."""
