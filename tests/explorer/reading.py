"""Reading the page's numbers as a person does, and the same question answered in Python."""

import torch

from relational_rnn.tasks.nth_farthest import nth_position

MINUS = "\u2212"  # what the page writes


def to_number(text: str) -> float:
    return float(text.replace(MINUS, "-").replace("%", ""))


def settle(page) -> None:
    """Wait until what was moved is drawn: the page computes once for each picture."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def table(page, summary: str) -> list[list[float]]:
    """The numbers under a "... as a table" in the section that is shown; opens it."""
    details = page.locator("section:not([hidden]) details").filter(has_text=summary).first
    if details.get_attribute("open") is None:
        details.locator("summary").click()
    details.locator("tbody tr").first.wait_for()
    rows = details.evaluate(
        "d => [...d.querySelectorAll('tbody tr')].map(r => [...r.cells].slice(1).map(c => c.textContent))"
    )
    return [[to_number(text) for text in row] for row in rows]


def question(page):
    """(vectors [V, D], labels [V], rank from 1, m) as the page shows them."""
    inputs = page.locator("#memory .inputs tbody tr")
    rows = inputs.evaluate_all(
        """rows => rows.map(r => [
            r.cells[0].textContent, ...[...r.querySelectorAll('input')].map(i => Number(i.value))])"""
    )
    labels = torch.tensor([ord(row[0]) - ord("A") for row in rows])
    vectors = torch.tensor([row[1:] for row in rows])
    rank, m = page.locator("#memory .ask select").evaluate_all("all => all.map(s => Number(s.value))")
    return vectors, labels, rank, m


def answer_in_python(task, model, vectors, labels, rank, m):
    """The right label, probabilities after every step [V, classes], trace and memories [V, N, F]."""
    V = len(vectors)
    n = rank - 1 if task.convention == "farthest" else V - rank
    one_hot = torch.eye(V)
    pair = (m, n) if task.order == "sonnet" else (n, m)
    x = torch.cat([vectors, one_hot[labels], *(one_hot[k].expand(V, V) for k in pair)], 1)
    with torch.no_grad():
        output, _, trace = model.core(x[:, None], need_weights=True)
        chances = model.head(output[:, 0]).softmax(-1)
    reference = vectors[labels.tolist().index(m)][None, None]
    step = nth_position(vectors[None], reference, torch.tensor([n]), None, task.convention)
    memories = output[:, 0].unflatten(-1, (model.core.mem_slots, -1))
    return labels[step].item(), chances, trace, memories
