"""The server: this machine only, its folder only, headers that forbid requests elsewhere; and rmc explore."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest

from relational_rnn.cli.__main__ import main
from relational_rnn.explorer.serve import PageServer
from tests.markdown import ROOT


@pytest.fixture
def server(tmp_path, full_page):
    (tmp_path / "secret.js").write_text("secret")
    folder = tmp_path / "page"
    folder.mkdir()
    for path in full_page.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "link.js").symlink_to(tmp_path / "secret.js")
    (folder / "notes.txt").write_text("not a part of the page")
    with PageServer(folder) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server, path, *, method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    return answer, answer.read()


def test_the_page_with_its_headers(server):
    assert server.server_address[0] == "127.0.0.1"
    answer, body = ask(server, "/")
    assert answer.status == 200
    assert b"Relational memory explorer" in body
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_head_has_no_body(server):
    answer, body = ask(server, "/data.js?x=1", method="HEAD")
    assert answer.status == 200
    assert int(answer.headers["Content-Length"]) > 1000
    assert body == b""


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.js",
        "/%2e%2e/secret.js",
        "/link.js",
        "/notes.txt",
        "//etc/passwd",
        "/page",
        "/.",
        "/js/",
        "/x%00",
        "http://[x/",
    ],
)
def test_nothing_else(server, path):
    answer, body = ask(server, path)
    assert answer.status == 404
    assert b"secret" not in body


def test_other_hosts_are_refused(server):
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1"):
        answer, body = ask(server, "/data.js", host=host)
        assert answer.status == 421
        assert b"explorerData" not in body
    answer, _ = ask(server, "/", host=f"localhost:{server.server_port}")
    assert answer.status == 200


def test_on_http_s_own_port_browsers_leave_it_out(server, monkeypatch):
    monkeypatch.setattr(server, "server_port", 80)
    assert server.hosts == {"127.0.0.1", "localhost", "127.0.0.1:80", "localhost:80"}


def test_a_browser_that_goes_away_is_no_error(server, monkeypatch, capfd):
    """As one does when its page is loaded again before all of it came."""
    noticed, handle = threading.Event(), server.handle_error
    monkeypatch.setattr(server, "handle_error", lambda *about: (handle(*about), noticed.set()))
    server.files["/data.js"].write_bytes(b"x" * 20_000_000)
    connection = socket.create_connection(server.server_address, timeout=10)
    connection.sendall(f"GET /data.js HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
    assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    connection.close()
    assert noticed.wait(10)
    assert capfd.readouterr().err == ""


def test_other_methods_are_refused(server):
    answer, _ = ask(server, "/", method="POST")
    assert answer.status == 501


# ------------------------------------------------------------------ rmc explore


def test_export_to_a_folder(run_of, tmp_path, capsys):
    assert main(["explore", str(run_of("nth")), "--to", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "MB of data" in said
    assert f"page: {tmp_path / 'out' / 'index.html'}" in said
    assert (tmp_path / "out" / "data.js").exists()


def test_what_a_run_says_of_itself_is_not_told_to_the_terminal(run_of, tmp_path, capsys):
    run = shutil.copytree(run_of("lstm"), tmp_path / "run")
    described = json.loads((run / "config.json").read_text())
    described["experiment"] = "lm\x1b]0;title\x07"
    (run / "config.json").write_text(json.dumps(described))
    assert main(["explore", str(run), "--to", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "lm\\x1b]0;title\\x07 has no section" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "run folder nowhere does not exist"),
        (["--port", "70000"], "--port '70000' is not allowed; allowed: 0 to 65535"),
        (["--port", "²"], "--port '²' is not allowed; allowed: 0 to 65535"),
        (["--prot", "80"], "unknown option '--prot'; allowed: --to, --results, --port, --browser"),
        (["--results", "nowhere"], "--results nowhere does not exist"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    assert main(["explore", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_is_no_export_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["explore", "--to", str(tmp_path)]) == 2
    assert "exists and is no earlier export" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serving_until_interrupted(tmp_path, number):
    """Started as a shell starts what is in the background: with Ctrl-C ignored."""
    command = [sys.executable, "-m", "relational_rnn.cli", "explore"]
    where = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    ignoring = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=where, cwd=tmp_path)
    signal.signal(signal.SIGINT, ignoring)
    try:
        said = ""
        while "open http" not in said:
            line = process.stdout.readline()
            assert line, f"it ended: {said}"
            said += line
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", said).group(1))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(number)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.communicate()
    assert list(tmp_path.iterdir()) == []  # the temporary page is gone
