"""The report in headless Chromium: what it shows, and the effect of its filters."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from flfa_app.experiments.report.page import render_report
from flfa_app.experiments.store import Cell, GridResults
from tests.results_folder import AXES, finish_all, finish_cell, make_grid
from tests.system_packages import find_program

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium", "chromedriver")]

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
DATASETS = ("bloodmnist", "organcmnist", "organsmnist", "pathmnist", "cifar10")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(find_program("chromium"))
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Without a path Selenium would download a driver.
    driver = webdriver.Chrome(options, Service(find_program("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a report with five data sets, which is wider than a phone."""
    folder = tmp_path_factory.mktemp("grid")
    axes = AXES | {"dataset": {name: {"dataset": name} for name in DATASETS}}
    results = make_grid(folder, axes, table="table1")

    def score(cell: Cell) -> float:
        return 0.5 + 0.01 * cell.seed + 0.02 * (cell.axes["flfa"] == "lowest")

    finish_all(results, score, auc=0.9)
    return write_report(results)


@pytest.fixture
def page(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    set_screen(browser, 1280, 900)
    browser.get(address)
    return browser


def write_report(results: GridResults) -> str:
    """Write a report; return its address."""
    path: Path = results.folder / "report.html"
    path.write_text(render_report(results, date(2026, 1, 2)), encoding="utf-8")
    return path.as_uri()


def set_screen(browser: webdriver.Chrome, width: int, height: int) -> None:
    screen = {"width": width, "height": height, "deviceScaleFactor": 1}
    phone = {"mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen | phone)


def page_width(page: webdriver.Chrome, width: int) -> int:
    """Return the width of the page on a screen of this width, with all unfolded."""
    set_screen(page, width, 700)
    page.execute_script(
        "document.querySelectorAll('details').forEach(d => d.open = true)"
    )
    assert page.execute_script("return innerWidth") == width
    return int(page.execute_script("return document.documentElement.scrollWidth"))


def visible_texts(page: webdriver.Chrome, selector: str) -> list[str]:
    """Return the texts of the visible elements."""
    elements = page.find_elements(By.CSS_SELECTOR, selector)
    return [element.text for element in elements if element.is_displayed()]


def checkbox(page: webdriver.Chrome, value: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, f"#filters input[value='{value}']")


def table_headings(page: webdriver.Chrome) -> list[str]:
    return visible_texts(page, "section[data-metric] > h2")


def column_labels(page: webdriver.Chrome) -> list[str]:
    return visible_texts(page, "section[data-metric=score] thead th")


def row_labels(page: webdriver.Chrome) -> list[str]:
    return visible_texts(page, "section[data-metric=score] tr.value > th")


def test_the_page_shows_everything_at_first(page: webdriver.Chrome) -> None:
    assert page.title == "A small grid"
    names = ["BloodMNIST", "OrganCMNIST", "OrganSMNIST", "PathMNIST", "CIFAR-10"]
    assert column_labels(page) == names
    assert row_labels(page) == ["FedAvg", "FedAvg + FLFA", "MOON", "MOON + FLFA"]
    assert len(table_headings(page)) == 5  # three tables, two kinds of curves
    cell = visible_texts(page, "section[data-metric=score] tr.value > td")[0]
    assert cell == "51.00 ± 1.00\npaper 59.26"


def test_the_console_is_silent(page: webdriver.Chrome) -> None:
    checkbox(page, "moon").click()
    assert page.get_log("browser") == []


def test_filter_of_data_sets(page: webdriver.Chrome) -> None:
    checkbox(page, "organcmnist").click()
    assert column_labels(page) == ["BloodMNIST", "OrganSMNIST", "PathMNIST", "CIFAR-10"]
    row = "section[data-metric=score] tr.value"
    assert len(visible_texts(page, f"{row}:first-child > td")) == 4
    assert "OrganCMNIST" not in visible_texts(page, "summary")
    checkbox(page, "organcmnist").click()
    assert len(column_labels(page)) == 5
    assert "OrganCMNIST" in visible_texts(page, "summary")


def test_filter_of_methods(page: webdriver.Chrome) -> None:
    before = len(visible_texts(page, "figure"))
    checkbox(page, "moon").click()
    assert row_labels(page) == ["FedAvg", "FedAvg + FLFA"]
    assert visible_texts(page, "section[data-metric=score] tr.difference > th") == [
        "difference to FedAvg"
    ]
    assert len(visible_texts(page, "figure")) == before / 2


def test_filter_of_rules(page: webdriver.Chrome) -> None:
    """It also hides one of the two lines in each chart."""
    curves = "section[data-metric=score] figure:first-child g"
    lines = page.find_elements(By.CSS_SELECTOR, curves)[:2]
    assert [line.is_displayed() for line in lines] == [True, True]
    checkbox(page, "lowest").click()
    assert row_labels(page) == ["FedAvg", "MOON"]
    assert [line.is_displayed() for line in lines] == [True, False]


@pytest.mark.parametrize(
    ("metric", "start"),
    [("accuracy", "Accuracy"), ("AUC", "Macro-AUC"), ("time", "Time")],
)
def test_filter_of_metrics(page: webdriver.Chrome, metric: str, start: str) -> None:
    Select(page.find_element(By.ID, "metric")).select_by_visible_text(metric)
    assert table_headings(page)
    assert all(heading.startswith(start) for heading in table_headings(page))


def test_a_message_says_that_nothing_is_left(page: webdriver.Chrome) -> None:
    message = page.find_element(By.ID, "nothing")
    for name in ("fedavg", "moon"):
        assert not message.is_displayed()
        checkbox(page, name).click()
    assert message.is_displayed()


def test_the_button_shows_all_again(page: webdriver.Chrome) -> None:
    checkbox(page, "moon").click()
    Select(page.find_element(By.ID, "metric")).select_by_visible_text("time")
    page.find_element(By.CSS_SELECTOR, "button[type=reset]").click()
    WebDriverWait(page, 5).until(lambda _: len(table_headings(page)) == 5)
    assert len(row_labels(page)) == 4


def test_a_phone_does_not_scroll_sideways(page: webdriver.Chrome) -> None:
    """Tables that are too wide scroll inside their own box."""
    assert page_width(page, 375) <= 375
    table = page.find_element(By.CSS_SELECTOR, "section[data-metric=score] .scroll")
    inside, outside = page.execute_script(
        "return [arguments[0].scrollWidth, arguments[0].clientWidth]", table
    )
    assert inside > outside
    assert outside <= 375


def test_long_labels_do_not_widen_a_phone(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    """With two further axes and two rules, names of curves exceed the screen."""
    axes = {
        "dataset": {"bloodmnist": {"dataset": "bloodmnist"}},
        "method": {"fedavg": {"algorithm": "fedavg"}},
        "flfa": {rule: {"flfa": rule} for rule in ("none", "lowest", "highest")},
        "partition": {
            f"dirichlet-{beta}": {"dirichlet-beta": beta} for beta in (0.3, 0.1)
        },
        "local-epochs": {str(n): {"local-epochs": n} for n in (1, 5)},
    }
    results = make_grid(tmp_path, axes, seeds=(0, 1))
    finish_all(results, lambda cell: 0.5, auc=0.9)
    browser.get(write_report(results))
    assert page_width(browser, 360) <= 360
    label = "FedAvg + FLFA (lowest), partition dirichlet-0.1, local-epochs 5"
    assert label in visible_texts(browser, ".key")


def test_labels_of_small_numbers_are_not_cut_off(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    """The drift reduction is -0.0004, the accuracy 50 %."""
    results = make_grid(tmp_path, seeds=(0,))
    for cell in results.cells:
        with_flfa = cell.axes["flfa"] == "lowest"
        finish_cell(results, cell, drift=0.0005 if with_flfa else 0.0001)
    browser.get(write_report(results))
    starts = browser.execute_script(
        "return [...document.querySelectorAll('figure svg text.end')]"
        ".map(label => [label.textContent, label.getBBox().x])"
    )
    assert "-0.0004" in dict(starts)
    assert [label for label, x in starts if x < 0] == []


def test_the_page_without_javascript(browser: webdriver.Chrome, address: str) -> None:
    command = "Emulation.setScriptExecutionDisabled"
    browser.execute_cdp_cmd(command, {"value": True})
    try:
        browser.get(address)
        assert row_labels(browser) == ["FedAvg", "FedAvg + FLFA", "MOON", "MOON + FLFA"]
        assert len(table_headings(browser)) == 5
        # Filters would do nothing.
        assert visible_texts(browser, "#filters") == []
    finally:
        browser.execute_cdp_cmd(command, {"value": False})


def test_dark_and_light_colors(page: webdriver.Chrome) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        body = page.find_element(By.TAG_NAME, "body")
        colours[scheme] = body.value_of_css_property("background-color")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert colours == {"light": "rgba(255, 255, 255, 1)", "dark": "rgba(20, 23, 26, 1)"}


def test_nothing_is_folded_in_print(page: webdriver.Chrome) -> None:
    assert visible_texts(page, "#filters") != []
    folded = page.find_elements(By.CSS_SELECTOR, "details:not([open]) figure")
    seen = "return arguments[0].every(figure => figure.checkVisibility())"
    assert folded
    assert not page.execute_script(seen, folded)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert visible_texts(page, "#filters") == []
        assert page.execute_script(seen, folded)
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
