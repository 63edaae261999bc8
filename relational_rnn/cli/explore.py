"""rmc explore: the page that looks inside trained models, made of run folders and served on this machine."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.train import take_option, user_errors

HELP = """\
usage: rmc explore [RUN ...] [--to FOLDER] [--results FOLDER] [--port N]
                   [--browser]

Opens a page with: the memory of N-th farthest models, to be asked live;
episodes of BoxWorld and Mini Pacman agents; programs read character by
character; the paper's results beside ours. RUN are run folders of any
experiment. The weights in the package and the results folder are always shown.

--to FOLDER       write the page there and stop: open its index.html, or publish
                  the folder as it is. An earlier export is replaced; anything
                  else is left alone.
--results FOLDER  kept results (default: results, where there is one)
--port N          to serve on, on this machine only (default: any free one)
--browser         open it in the default browser
docs/explorer.md has more.
"""
DEFAULT_RESULTS = "results"


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    rest, to = take_option(arguments, "--to")
    rest, results = take_option(rest, "--results")
    rest, port = take_option(rest, "--port", default="0")
    browser = "--browser" in rest
    runs = [Path(argument) for argument in rest if argument != "--browser"]
    if unknown := [run for run in runs if str(run).startswith("--")]:
        raise UsageError(f"unknown option {str(unknown[0])!r}; allowed: --to, --results, --port, --browser")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"--port {port!r} is not allowed; allowed: 0 to 65535")
    if results is not None and not Path(results).is_dir():
        raise UsageError(f"--results {results} does not exist; allowed: a folder of kept results")
    if results is None and Path(DEFAULT_RESULTS).is_dir():
        results = DEFAULT_RESULTS
    data = collect(runs, None if results is None else Path(results))
    if to is not None:
        export(data, Path(to))
        print(f"page: {Path(to) / 'index.html'}")
        return 0
    with tempfile.TemporaryDirectory(prefix="rmc-explore-") as folder:
        export(data, Path(folder) / "page")
        return serve(Path(folder) / "page", int(port), browser)


def collect(runs: list[Path], results: Path | None) -> dict:
    from relational_rnn.analysis.runs import visible
    from relational_rnn.explorer.export import collect

    with user_errors():
        data = collect(runs, results)
    for notice in data["notices"]:
        print(f"rmc: note: {visible(notice)}", file=sys.stderr)
    return data


def export(data: dict, folder: Path) -> None:
    from relational_rnn.explorer.export import MAX_BYTES, write

    with user_errors():
        size = write(data, folder)
    counts = ((len(data["memory"]), "memory", "memories"), (len(data["games"]), "agent", "agents"))
    counts += ((len(data["programs"]), "program reader", "program readers"),)
    told = ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts)
    print(f"{told}; {size / 1e6:.1f} MB of data")
    if size > MAX_BYTES:
        print(
            f"rmc: note: more than {MAX_BYTES / 1e6:.0f} MB load slowly; give fewer runs at once",
            file=sys.stderr,
        )


def serve(folder: Path, port: int, browser: bool) -> int:
    import webbrowser

    from relational_rnn.explorer.serve import PageServer

    try:
        server = PageServer(folder, port)
    except OSError as error:
        raise UsageError(f"--port {port} cannot be used: {error.strerror}") from error
    with server:
        print(f"open {server.address} (Ctrl-C ends)", flush=True)
        if browser:
            webbrowser.open(server.address)
        # Both signals end it and remove the page, also where a shell had it ignore Ctrl-C.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0
