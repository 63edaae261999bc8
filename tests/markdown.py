"""Reading the project's pages: their code blocks, sections, links and file trees."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """(line it begins on, text) of every fenced block of a language."""
    found, start, lines = [], None, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if start is None and line == f"```{language}":
            start, lines = number, []
        elif start is not None and line == "```":
            found.append((start, "\n".join(lines)))
            start = None
        elif start is not None:
            lines.append(line)
    return found


def execute(page: Path) -> int:
    """Run a page's Python blocks one after the other, as a reader who types them would -> how many."""
    names = {"__name__": "__main__"}
    found = blocks(page, "python")
    for start, text in found:
        exec(compile("\n" * start + text, page.name, "exec"), names)  # errors then name the page's line
    return len(found)


def links(page: Path) -> set[str]:
    """Relative links, without what follows a #."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return {t.partition("#")[0] for t in targets if not re.match(r"https?:|#", t)}


def tree_paths(text: str) -> list[str]:
    """Paths of a tree drawn by indentation: names, two or more spaces, what they are."""
    paths, parents = [], {}
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        above = parents.get(max((i for i in parents if i < indent), default=None), "")
        parents = {i: p for i, p in parents.items() if i < indent}
        for name in re.split(r"\s{2,}", line.strip())[0].split():
            paths.append(above + name)
            parents[indent] = above + name
    return paths
