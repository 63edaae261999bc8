"""Small real run folders, pages made of them, and a browser that notices every error and request."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from relational_rnn.cli.__main__ import main
from relational_rnn.explorer import export

SMOKE = {
    "nth": ["nth-farthest"],
    "lstm": ["nth-farthest", "--core", "lstm"],
    "box": ["box-world"],
    "pacman": ["mini-pacman"],
    "cells": ["box-world", "--model.cells-as-rows"],
    "conv": ["box-world", "--core", "conv-lstm"],
    "lte": ["lte"],
    "scheduled": ["lte", "--model.regime", "scheduled", "--task", "reverse"],
    "long": ["lte", "--task", "program", "--length", "5", "--nest", "2"],
    "scratchpad": ["lte", "--model.scratchpad", "--task", "control", "--nest", "2"],
}


@pytest.fixture(scope="session")
def run_of(tmp_path_factory):
    """run_of("nth") is a run folder of the smoke preset, trained when first asked for."""
    folder = tmp_path_factory.mktemp("runs")

    def train(kind: str) -> Path:
        if not (folder / kind).exists():
            experiment, *options = SMOKE[kind]
            command = ["train", experiment, "--preset", "smoke", "--run", str(folder / kind), *options]
            steps = "20" if experiment in ("nth-farthest", "lte") else "4"
            assert main([*command, "--training.steps", steps]) == 0
        return folder / kind

    return train


@pytest.fixture(scope="session")
def full_page(run_of, tmp_path_factory) -> Path:
    """A page with something in every section."""
    folder = tmp_path_factory.mktemp("page") / "full"
    kinds = ("nth", "box", "pacman", "cells", "conv", "lte", "scheduled", "scratchpad")
    runs = [run_of(kind) for kind in kinds]
    export.write(export.collect(runs, weights=tmp_path_factory.mktemp("none")), folder)
    return folder


@pytest.fixture(scope="session")
def empty_page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "empty"
    export.write(export.collect([], weights=tmp_path_factory.mktemp("none")), folder)
    return folder


def find_browser() -> str | None:
    """$CHROMIUM, or a Chromium on the path."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[dev]'")
    path = find_browser()
    if path is None:
        pytest.skip("no browser: apt-get install chromium, or give the path of one in $CHROMIUM")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """`with visit(folder, "games") as page:` fails at the end on any console error or request elsewhere."""

    @contextmanager
    def visiting(place: Path | str, section: str = "memory", *, size=(1280, 900), scheme: str = "light"):
        base = f"file://{place}/" if isinstance(place, Path) else place
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        page.set_default_timeout(20_000)
        problems = []
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda r: None if r.url.startswith((base, "data:")) else problems.append(f"asked for {r.url}"),
        )
        page.goto(f"{base}index.html#{section}")
        page.wait_for_selector("html[data-ready]")
        yield page
        context.close()
        assert problems == []

    return visiting
