"""The page of a run: for those who know its token, and closed with the run."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from elbowroom.errors import UsageError
from elbowroom.live.live_server import LiveServer
from elbowroom.live.sampling import Sampler
from tests.core.live_moments import moment


@pytest.fixture
def server() -> Iterator[LiveServer]:
    opened = LiveServer(Sampler(moment, "<b>train.py", lambda _: None), 0)
    yield opened
    opened.close()


def get(server: LiveServer, path: str, headers: dict[str, str] | None = None) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    found = answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    connection.close()
    return found


@pytest.mark.parametrize("path", ["/", "/figures", "/points", "/metrics", "/nothing"])
@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%C3%A4", "?other=1"])
def test_without_the_token_nothing_is_answered(server: LiveServer, path: str, query: str) -> None:
    status, _, text = get(server, path + query)

    assert (status, text) == (403, "403: the token is missing or wrong\n")


def test_the_token_may_be_in_the_address_or_in_a_header(server: LiveServer) -> None:
    by_address = get(server, f"/figures?token={server.token}")
    by_header = get(server, "/figures", {"Authorization": f"Bearer {server.token}"})

    assert by_address == by_header
    assert by_address[:2] == (200, "application/json")
    assert json.loads(by_address[2])["script"] == "<b>train.py"
    assert get(server, "/figures", {"Authorization": "Bearer wrong"})[0] == 403


def test_metrics_and_the_looks_of_the_last_minutes_are_answered(server: LiveServer) -> None:
    status, kind, text = get(server, f"/metrics?token={server.token}")
    points = json.loads(get(server, f"/points?token={server.token}")[2])

    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert text.startswith("# HELP elbowroom_device_bytes ")
    assert [point[1] for point in points] == [20 * 2**20]


def test_the_page_is_one_file_that_asks_nobody_else(server: LiveServer) -> None:
    status, kind, page = get(server, f"/?token={server.token}")

    assert (status, kind) == (200, "text/html; charset=utf-8")
    addresses = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"'\s)>]+)""", page)
    assert addresses == ["data:,"]
    assert "innerHTML" not in page  # a script's name is text, whatever it is


def test_an_address_that_is_not_there_names_those_that_are(server: LiveServer) -> None:
    status, _, text = get(server, f"/none?token={server.token}")

    assert (status, text) == (404, "404: there are /, /figures, /points, /metrics\n")


def test_it_is_bound_to_this_computer_alone(server: LiveServer) -> None:
    assert server._server.server_address[0] == "127.0.0.1"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", server.address)


def test_a_client_that_asks_nothing_or_nonsense_does_not_end_it(
    server: LiveServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as gone:
        gone.sendall(b"GET")
    with socket.create_connection(("127.0.0.1", server.port)) as nonsense:
        nonsense.sendall(b"\x00\xff\r\n\r\n")
        nonsense.recv(1000)

    assert get(server, f"/figures?token={server.token}")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_port_that_is_taken_is_refused_with_what_to_do(server: LiveServer) -> None:
    with pytest.raises(UsageError, match=rf"--live-port: given {server.port}; allowed is a free port .*give another"):
        LiveServer(Sampler(moment, "train.py", lambda _: None), server.port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(UsageError, match=f"--live-port: given {port}; allowed is a free port from 1024 to 65535"):
        LiveServer(Sampler(moment, "train.py", lambda _: None), port)


def test_no_thread_stays_when_it_is_closed() -> None:
    server = LiveServer(Sampler(moment, "train.py", lambda _: None), 0)
    assert any(thread.name == "elbowroom-page" and thread.daemon for thread in threading.enumerate())

    server.close()

    assert not any(thread.name == "elbowroom-page" for thread in threading.enumerate())
    with pytest.raises(ConnectionRefusedError):
        get(server, "/")
