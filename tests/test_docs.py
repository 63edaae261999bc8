"""The pages under docs/: their Python blocks run and their links lead somewhere."""

import functools

import pytest
import torch

from tests.markdown import ROOT, execute, links

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_runs(page, monkeypatch):
    monkeypatch.chdir(ROOT)  # pages name files from here
    eager = functools.partial(torch.compile, backend="aot_eager")  # traced, but without a C++ compiler
    monkeypatch.setattr(torch, "compile", eager)
    execute(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    assert [link for link in links(page) if link and not (page.parent / link).exists()] == []
