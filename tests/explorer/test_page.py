"""In a real browser: every section with and without data, from disk and served, by mouse and by keyboard."""

import json
import threading
from pathlib import Path

import pytest

from relational_rnn.explorer import export
from relational_rnn.explorer.serve import PageServer
from tests.explorer import reading

SECTIONS = ("memory", "games", "programs", "results")
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def shades(page, selector: str) -> list[str]:
    return page.locator(f"section:not([hidden]) {selector} .heat").evaluate_all(
        "cells => cells.map(c => c.getAttribute('fill-opacity'))"
    )


def shown_in(page, section: str):
    page.locator(f"nav a[href='#{section}']").click()
    page.locator(f"#{section}").wait_for()
    assert [name for name in SECTIONS if page.locator(f"#{name}").is_visible()] == [section]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_sections_with_data(visit, full_page, scheme):
    with visit(full_page, scheme=scheme) as page:
        for section in SECTIONS:
            shown_in(page, section)
            assert page.locator(f"#{section} .empty").count() == 0
            assert page.locator(f"#{section} .card").count() >= 3
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(20, 22, 26)") == (scheme == "dark")


def test_all_sections_without_data_say_how_to_make_it(visit, empty_page):
    commands = {
        "memory": "rmc train nth-farthest --preset demo",
        "games": "rmc train box-world",
        "programs": "rmc train lte",
        "results": "rmc results add",
    }
    with visit(empty_page) as page:
        for section, command in commands.items():
            shown_in(page, section)
            assert command in page.locator(f"#{section} .empty code").inner_text()
        assert "no result here" in page.locator("#results .claims").first.inner_text()


def test_kept_results_are_told_apart_and_credited(visit, tmp_path):
    """The repository's own: a colour for each task of one model; others' numbers are not the paper's."""
    data = export.collect([], Path(__file__).parents[2] / "results", weights=tmp_path)
    export.write(data, tmp_path / "page")
    with visit(tmp_path / "page", "results") as page:
        cards = page.locator("#results .card")
        table1 = cards.filter(has=page.get_by_text("Program evaluation and memorisation"))
        names = table1.locator(".legend li").all_inner_texts()
        dots = table1.locator(".legend .swatch")
        colours = dots.evaluate_all("all => all.map((one) => one.style.background)")
        assert len(set(colours)) == len(names) > 1  # by task, or by model once there are several
        beyond = cards.filter(has=page.get_by_text("Not of the paper"))
        assert "published" in beyond.locator(".claims thead").first.inner_text()
        assert "paper" not in beyond.locator(".claims").first.inner_text()


def test_the_page_without_its_data_says_so(visit, full_page, tmp_path):
    export.write({}, tmp_path / "page")
    (tmp_path / "page" / "data.js").write_text("// lost\n")
    with visit(tmp_path / "page") as page:
        assert "data.js is missing" in page.locator("#memory .empty").inner_text()


@pytest.fixture
def address(full_page):
    with PageServer(full_page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.address
        server.shutdown()
        thread.join()


def test_served_it_is_the_same_page(visit, address):
    with visit(address) as page:
        for section in SECTIONS:
            shown_in(page, section)
            assert page.locator(f"#{section} .card").count() >= 3


@pytest.mark.parametrize("where", ["served", "from disk"])
def test_the_page_may_not_ask_anything_of_anyone(browser, address, full_page, where):
    page = browser.new_page()
    page.goto(address if where == "served" else f"file://{full_page}/index.html")
    page.wait_for_selector("html[data-ready]")
    ask = """url => new Promise(done => {
        addEventListener('securitypolicyviolation', event => done(event.effectiveDirective));
        fetch(url).then(() => done('reached'), () => setTimeout(() => done('failed'), 2000));
    })"""
    assert page.evaluate(ask, f"{address}data.js") == "connect-src"  # it is there, and still not to be asked
    page.close()


@pytest.mark.parametrize(("section", "maps"), [("memory", 2), ("games", 2), ("programs", 2)])
def test_stepping_changes_the_maps(visit, full_page, section, maps):
    with visit(full_page, section) as page:
        area = page.locator(f"#{section}")
        slider = area.locator(".stepper input[type=range]")
        slider.fill("0")
        heads, slots = shades(page, ".maps"), area.locator(".meters").inner_text()
        assert area.locator(".maps figure").count() == maps
        assert len(set(heads)) > 3
        area.get_by_role("button", name="Next").click()
        assert slider.input_value() == "1"
        assert shades(page, ".maps") != heads
        assert area.locator(".meters").inner_text() != slots
        area.get_by_role("button", name="Previous").click()
        assert shades(page, ".maps") == heads
        assert area.locator(".meters").inner_text() == slots


def test_playing_goes_to_the_end_and_stops(visit, full_page):
    with visit(full_page) as page:
        where = page.locator("#memory .where")
        page.locator("#memory .play").click()  # at the end: it begins anew
        assert "1 of 3" in where.inner_text()
        page.locator("#memory .where", has_text="3 of 3").wait_for()
        page.locator("#memory .play", has_text="Play").wait_for()


def test_drawing_by_keyboard(visit, full_page):
    with visit(full_page) as page:
        before = reading.table(page, "Probabilities as a table")
        vectors, labels, *_ = reading.question(page)
        step = labels.tolist().index(0)
        page.locator("#memory .plane .point").first.focus()
        left = vectors[step, 0] > 0
        for _ in range(4):
            page.keyboard.press("ArrowLeft" if left else "ArrowRight")
        reading.settle(page)
        moved = reading.question(page)[0] - vectors
        assert moved[step, 0].item() == pytest.approx(-0.2 if left else 0.2, abs=1e-5)
        assert moved.count_nonzero() == 1
        assert reading.table(page, "Probabilities as a table") != before


def test_hover_and_arrow_keys_show_numbers(visit, full_page):
    with visit(full_page) as page:
        row = reading.table(page, "Attention as a table")[0]
        page.locator("#memory .maps .map").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        said = page.locator("#spoken").inner_text()
        assert said.startswith("Head 1: slot 1 reads slot 2, ")
        assert reading.to_number(said.rsplit(" ", 1)[1]) == pytest.approx(row[1], abs=6e-4)
        page.locator("#memory .maps .heat").first.hover()
        assert page.locator("#tip").inner_text().startswith("Head 1: slot 1 reads slot 1, ")


def test_random_question_order_and_theme(visit, full_page):
    with visit(full_page) as page:
        asked = reading.question(page)
        page.get_by_role("button", name="Random question").click()
        assert reading.question(page)[0].tolist() != asked[0].tolist()
        page.get_by_role("button", name="Switch to dark colours").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"
        page.reload()
        assert page.locator("html").get_attribute("data-theme") == "dark"


def test_games_show_level_view_and_value(visit, full_page):
    """Both games, an agent that attends to cells, and one without slots."""
    with visit(full_page, "games") as page:
        area = page.locator("#games")
        for index, name in enumerate(("box", "pacman", "cells", "conv")):
            area.locator("select").first.select_option(index=index)
            page.wait_for_timeout(60)
            painted = area.locator("canvas").evaluate_all(
                """all => all.map(c =>
                     new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size)"""
            )
            assert len(painted) == 2
            assert min(painted) > 2, name
            assert "Does: " in area.locator(".caption").inner_text()
            assert area.locator(".chart").count() == 1
            assert (area.locator(".maps").count() == 0) == (name == "conv")
        caption = area.locator(".caption").inner_text()
        area.locator("select").nth(1).select_option(index=1)
        assert area.locator(".caption").inner_text() != caption


def test_programs_are_read_character_by_character(visit, full_page):
    data = json.loads((full_page / "data.js").read_text().removeprefix(export.PREFIX).rstrip(";\n"))
    sample = data["programs"][0]["samples"][0]
    with visit(full_page, "programs") as page:
        chips = page.locator("#programs .chip")
        assert "".join(chips.all_inner_texts()) == sample["text"] + sample["soFar"][-1]
        for t, answer in enumerate(sample["soFar"]):
            chips.nth(t).click()
            assert "".join(page.locator("#programs .digits b").all_inner_texts()) == answer
        first = page.locator("#programs tbody tr").first.locator("td").all_inner_texts()
        assert first[0] == sample["target"][0]
        assert first[1].split()[0] == sample["likely"][0][0]


def test_a_calculation_is_shown_digit_by_digit(visit, full_page):
    data = json.loads((full_page / "data.js").read_text().removeprefix(export.PREFIX).rstrip(";\n"))
    sample = data["programs"][2]["samples"][0]
    with visit(full_page, "programs") as page:
        page.locator("#programs select").first.select_option(index=2)
        chips = page.locator("#programs .chip")
        expected = [symbol or "\u00b7" for symbol, _, _ in sample["steps"]] + list(sample["soFar"][-1])
        assert chips.all_inner_texts() == expected
        written = [t for t, (_, kind, _) in enumerate(sample["steps"]) if kind > 1]
        first, last = written[0], written[-1]
        wrong = sample["steps"][first][1] == 3
        assert ("bad" if wrong else "good") in chips.nth(first).get_attribute("class").split()
        chips.nth(first).click()  # of the brackets: the program goes on
        sentence = page.locator("#programs .answer")
        assert sentence.inner_text() == f"If it ended here: {sample['soFar'][sample['steps'][first][2] - 1]}"
        chips.nth(last).click()
        assert sentence.inner_text().startswith(f"It answers {sample['soFar'][-1]}")


def test_a_run_s_name_is_text_wherever_it_stands(visit, full_page, tmp_path):
    data = json.loads((full_page / "data.js").read_text().removeprefix(export.PREFIX).rstrip(";\n"))
    for part in (*data["memory"], *data["games"], *data["programs"], *data["results"]["runs"]):
        part["name"] = EVIL
    data["notices"] = [f"{EVIL}: skipped 1 line"]
    data["made"] = EVIL
    export.write(data, tmp_path / "page")
    with visit(tmp_path / "page") as page:
        for section in SECTIONS:
            shown_in(page, section)
            assert EVIL in page.locator(f"#{section}").evaluate("s => s.textContent")
        assert (
            page.locator("main script, main img, main b:not([class])").count()
            == page.locator(".scale b").count()
        )


@pytest.mark.parametrize("section", SECTIONS)
def test_a_phone_needs_no_sideways_scrolling(visit, full_page, section):
    with visit(full_page, section, size=(360, 740)) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_long_choices_fit_a_phone(visit, tmp_path, run_of):
    """Episodes of the models in the package, and programs of the paper's size."""
    export.write(export.collect([run_of("long")]), tmp_path / "page")
    for section in ("games", "programs"):
        with visit(tmp_path / "page", section, size=(320, 740)) as page:
            models = page.locator(f"#{section} select").first
            for index in range(models.locator("option").count()):
                models.select_option(index=index)
                assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_curves_of_kept_results_have_their_numbers_below(visit, full_page):
    with visit(full_page, "results") as page:
        charts = page.locator("#results svg[role=img]").count()
        tables = page.locator("#results details.numbers", has=page.get_by_text("Curves as a table"))
        assert tables.count() == charts > 1
        for i in range(charts):
            tables.nth(i).locator("summary").click()
        page.wait_for_timeout(60)
        assert all(tables.nth(i).locator("tbody tr").count() for i in range(charts))


def test_every_control_and_picture_has_a_name(visit, full_page):
    with visit(full_page) as page:
        for section in SECTIONS:
            shown_in(page, section)
            nameless = page.evaluate(
                """() => [...document.querySelector('section:not([hidden])').querySelectorAll(
                     'button, select, input, summary, canvas, svg[role=img], [tabindex]')]
                   .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length))
                   .map(e => e.outerHTML.slice(0, 120))"""
            )
            assert nameless == []
        assert page.locator("h1:visible").count() == 1
