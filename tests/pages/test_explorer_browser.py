"""The explorer in headless Chromium from `file://`; skipped without Chromium."""

import json
import re

import pytest

from helpers.browser import chromium, missing_programs
from helpers.explorer_trees import ATTACK, NAME, hostile_tree, large_tree, result, write_results
from inference_kernels.core.files import read_object
from inference_kernels.core.records import PUBLISHED_TARGET, read_captures
from inference_kernels.pages.explorer import page as explorer_page

pytest.importorskip("pygments", reason="Pygments (the extra `plot`) is not installed")
if missing_programs():
    pytest.skip(missing_programs(), allow_module_level=True)

ROUTES = ("", "workloads", "captures", "solutions", "results")
TAB, ENTER = "\ue004", "\ue007"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory, repository) -> str:
    """The address of this repository's page."""
    target = tmp_path_factory.mktemp("page") / "explorer.html"
    explorer_page.write_page(repository, target)
    return target.as_uri()


@pytest.fixture
def at(browser, page):
    """at(route) opens the page anew at that route; at the end the console must be empty."""
    browser.screen(1440)

    def opened(route: str):
        browser.open("about:blank")
        browser.open(f"{page}#/{route}")
        return browser

    yield opened
    assert browser.messages() == []


@pytest.fixture(scope="module")
def record(repository) -> dict:
    return next(row for row in read_captures(repository) if row["definition"] == NAME)


def every_route(record: dict) -> list[str]:
    return [*ROUTES, f"definition/{NAME}", f"workload/{record['workload']}", "workload/unknown"]


def test_the_front_page_shows_every_definition_and_counts_beside_their_target(at, repository):
    browser = at("")
    definitions = len(list((repository / "definitions").glob("*/*.json")))
    assert browser.run("return document.querySelectorAll('.cards > li').length") == definitions
    counts = [browser.text(f".classes .{name} .figure") for name in ("published", "contest", "seeded")]
    seeded = sum(row["class"] == "seeded" for row in read_captures(repository))
    assert "of 1,104" in counts[0] and "of 154" in counts[1] and counts[2].startswith(f"{seeded} ")
    assert browser.text(".summary") == f"{definitions} of {definitions} definitions"


def test_a_filter_narrows_the_list_tells_so_and_is_kept_in_the_address(at, record, repository):
    browser = at("workloads")
    browser.type("input[name=q]", NAME)
    browser.click("select[name=class] option[value=seeded]")
    every = read_captures(repository)
    expected = f"{sum(row['definition'] == NAME for row in every)} of {len(every)} workloads"
    assert browser.text(".summary") == expected
    assert browser.run("return document.getElementById('status').textContent") == expected
    assert browser.run("return document.activeElement.name") in ("q", "class")
    route = browser.run("return location.hash.slice(2)")
    assert route == f"workloads?q={NAME}&class=seeded"
    assert at(route).text(".summary") == expected and browser.run("return document.forms[0].q.value") == NAME
    browser.click("select[name=class] option[value=contest]")
    assert browser.becomes("document.querySelector('.nothing')?.textContent === 'No workloads fit this filter.'")
    browser.click(".reset")
    everything = f"{len(every)} of {len(every)} workloads"
    assert browser.becomes(f"document.querySelector('.summary')?.textContent === '{everything}'")


@pytest.mark.parametrize("query, key", [("operator=sparse_mla", "definition"), ("model=id:seeded/deepseek41", "model")])
def test_filters_keep_exactly_what_they_name(at, repository, query, key):
    browser = at(f"workloads?{query}")
    value = query.split("=")[1].removeprefix("id:")
    kept = [
        row["workload"]
        for row in read_captures(repository)
        if (row["definition"].startswith(value) if key == "definition" else row["model"]["id"] == value)
    ]
    shown = browser.run("return [...document.querySelectorAll('tbody th a')].map((node) => node.title)")
    assert sorted(shown) == sorted(kept) and kept


def test_an_architecture_keeps_the_definitions_with_a_solution_for_it(at, repository):
    browser = at("?arch=cpu")
    shown = browser.run("return [...document.querySelectorAll('.cards h2')].map((node) => node.textContent)")
    solutions = [read_object(path) for path in (repository / "solutions").glob("*/*.json")]
    solved = {item["definition"] for item in solutions if "cpu" in item["spec"]["target_hardware"]}
    assert set(shown) == solved and len(shown) == len(solved) > 0


def test_a_workload_opens_and_shows_its_whole_chain(at, record):
    browser = at("workloads")
    browser.click(f"a[title='{record['workload']}']")
    assert browser.becomes("document.activeElement.tagName === 'H1'")
    text = browser.run(
        "document.querySelectorAll('details').forEach((node) => { node.open = true; }); "
        "return document.getElementById('main').innerText"
    )
    wanted = [
        record["workload"],
        record["model"]["id"],
        record["model"]["config_sha256"],
        record["hardware"]["name"],
        record["request"]["prompt_sha256"],
        record["operation"]["call_path"],
        "replay passed",
        *record["engine"]["substitutions"],
        *record["adaptations"],
        *record["engine"]["environment"],
        *(item["path"] for item in record["outputs"].values()),
    ]
    assert [item for item in wanted if item not in text] == []
    rows = browser.run("return document.querySelector('table').querySelectorAll('tbody tr').length")
    assert rows >= len(record["statistics"])
    browser.run("history.back()")
    assert browser.becomes(f"document.activeElement.title === '{record['workload']}'")


def test_a_definition_shows_contract_reference_and_histogram(at, definition):
    browser, wanted = at(f"definition/{NAME}"), definition(NAME)
    assert browser.run("return document.querySelector('pre').textContent") == wanted["reference"]
    assert browser.run("return document.querySelectorAll('pre .k-k').length") > 5
    assert browser.run(
        "const image = document.querySelector('figure img'); "
        "return image.complete && image.naturalWidth > 0 && image.alt.length > 0"
    )
    text = browser.text("#main")
    for name, spec in {**wanted["axes"], **wanted["inputs"], **wanted["outputs"]}.items():
        assert name in text and spec["description"] in text
    assert all(rule in text for rule in wanted["constraints"])


def test_captures_lead_to_their_workloads(at, repository):
    browser, records = at("captures"), read_captures(repository)
    shown = browser.run(
        "return [...document.querySelectorAll('td[data-label=Workloads]')].map((node) => Number(node.textContent))"
    )
    assert sum(shown) == len(records)
    browser.click("tbody th a")
    assert browser.becomes("document.forms.length > 0")
    model = browser.run("return document.forms[0].model.value").removeprefix("id:")
    count = sum(row["model"]["id"] == model for row in records)
    assert browser.text(".summary") == f"{count} of {len(records)} workloads"


def test_buttons_lead_to_the_sections_of_a_page(at):
    browser = at(f"definition/{NAME}")
    browser.click(".jumps button:last-child")
    assert browser.run("return [document.activeElement.textContent, scrollY > 0]") == ["Reference", True]
    assert browser.run("return location.hash") == f"#/definition/{NAME}"


def test_the_keyboard_reaches_content_filter_and_first_definition(at):
    browser = at("")
    browser.press(TAB, ENTER)
    assert browser.run("return [document.activeElement.id, location.hash]") == ["main", "#/"]
    browser.press(TAB)
    assert browser.run("return document.activeElement.name") == "q"
    browser.press(*[TAB] * 6)
    assert browser.run("return document.activeElement.matches('.cards a')")
    browser.press(ENTER)
    assert browser.becomes("location.hash.startsWith('#/definition/')")
    assert browser.becomes("document.activeElement.tagName === 'H1'")


def test_structure_for_screen_readers(at, record):
    for route in every_route(record):
        faults = at(route).run("""
            const all = (selector) => [...document.querySelectorAll(selector)];
            const landmarks = ["header", "main", "footer", "nav[aria-label]", "h1"];
            return [...landmarks.filter((name) => !all(name).length), ...all("main h1").slice(1),
              ...all("input, select").filter((node) => !node.labels.length),
              ...all("img:not([alt]), a:not([href])"), ...all("table").filter((node) => !node.caption),
              ...all("button, a").filter((node) => !node.textContent.trim())].map(String)""")
        assert faults == [], route


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_no_page_is_wider_than_the_screen_and_the_scheme_is_followed(at, record, width, dark):
    for route in every_route(record):
        browser = at(route)
        browser.screen(width, dark)
        assert browser.run("return document.documentElement.scrollWidth") <= width, route
        colour = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (int(re.search(r"\d+", colour)[0]) < 128) is dark


def test_results_stand_beside_their_solutions(browser, tmp_path, repository):
    root = large_tree(repository, tmp_path / "dataset", 57)
    write_results(root, result(solution="not_here"), result(passed=2, worst_error=None))
    explorer_page.write_page(root, tmp_path / "page.html")
    browser.open((tmp_path / "page.html").as_uri() + "#/results")
    text = browser.text("tbody")
    assert "not_here" in text and "2 of 3 passed" in text and "12.5 µs" in text and "1.90×" in text
    assert browser.messages() == []


def test_hostile_data_are_shown_and_do_nothing(browser, tmp_path, repository):
    root = hostile_tree(repository, tmp_path / "dataset")
    write_results(root, result(solution=ATTACK))
    explorer_page.write_page(root, tmp_path / "page.html")
    uuid = read_captures(root)[0]["workload"]
    routes = [
        *ROUTES,
        f"definition/{NAME}",
        f"workload/{uuid}",
        "workload/%ZZ<img src=x>",
        "__proto__",
        "constructor",
        "workloads?class=__proto__&q=<img src=x>",
    ]
    for route in routes:
        browser.open("about:blank")
        browser.open(f"{(tmp_path / 'page.html').as_uri()}#/{route}")
        browser.run("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
        made = """
            const count = (selector) => document.querySelectorAll(selector).length;
            const effects = [window.attacked ?? null, ({}).polluted ?? null];
            return [...effects, count("script"), count("img:not(figure img)"), count("h1")]"""
        assert browser.run(made) == [None, None, 2, 0, 1], route
    browser.open(f"{(tmp_path / 'page.html').as_uri()}#/definition/{NAME}")
    assert ATTACK in browser.text("#main")
    browser.click("a[href^='#/solution/']")
    assert browser.becomes(f"document.querySelector('h1').textContent === {json.dumps(ATTACK)}")
    assert browser.messages() == []


def test_the_published_size_opens_in_parts_and_in_full(browser, tmp_path, repository):
    root = large_tree(repository, tmp_path / "dataset", PUBLISHED_TARGET)
    explorer_page.write_page(root, tmp_path / "page.html")
    browser.open((tmp_path / "page.html").as_uri() + "#/workloads")
    assert browser.text(".summary") == "1,104 of 1,104 workloads"
    count = "return document.querySelectorAll('tbody tr').length"
    assert browser.run(count) == 100
    browser.click(".more")
    assert browser.run(count) == PUBLISHED_TARGET
    assert browser.run("return document.activeElement.closest('tr').rowIndex") == 101
    browser.type("input[name=q]", "sparse_mla long_context")
    assert 0 < browser.run(count) < 100 and browser.messages() == []
