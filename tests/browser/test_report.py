"""The report in headless Chromium: what is shown, and what its filters do to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from flfa_app.experiments.report.page import write_report
from flfa_app.experiments.store import Cell
from tests.results_folder import AXES, finish_all, make_grid
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
    """A report with five data sets: wider than a phone."""
    folder = tmp_path_factory.mktemp("grid")
    axes = AXES | {"dataset": {name: {"dataset": name} for name in DATASETS}}
    results = make_grid(folder, axes, table="table1")

    def score(cell: Cell) -> float:
        return 0.5 + 0.01 * cell.seed + 0.02 * (cell.axes["flfa"] == "lowest")

    finish_all(results, score, auc=0.9)
    path: Path = folder / "report.html"
    write_report(results, path)
    return path.as_uri()


@pytest.fixture
def page(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    size(browser, 1280, 900)
    browser.get(address)
    return browser


def size(browser: webdriver.Chrome, width: int, height: int) -> None:
    screen = {"width": width, "height": height, "deviceScaleFactor": 1}
    phone = {"mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen | phone)


def width_on_a_phone(page: webdriver.Chrome, width: int) -> int:
    """How wide the page is on a screen of this width, with everything unfolded."""
    size(page, width, 700)
    page.execute_script(
        "document.querySelectorAll('details').forEach(d => d.open = true)"
    )
    assert page.execute_script("return innerWidth") == width
    return int(page.execute_script("return document.documentElement.scrollWidth"))


def shown(page: webdriver.Chrome, selector: str) -> list[str]:
    """The texts of the elements that can be seen."""
    found = page.find_elements(By.CSS_SELECTOR, selector)
    return [element.text for element in found if element.is_displayed()]


def box(page: webdriver.Chrome, value: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, f"#filters input[value='{value}']")


def tables(page: webdriver.Chrome) -> list[str]:
    return shown(page, "section[data-metric] > h2")


def columns(page: webdriver.Chrome) -> list[str]:
    return shown(page, "section[data-metric=score] thead th")


def methods(page: webdriver.Chrome) -> list[str]:
    return shown(page, "section[data-metric=score] tr.value > th")


def test_everything_is_shown_at_first(page: webdriver.Chrome) -> None:
    assert page.title == "A small grid"
    names = ["BloodMNIST", "OrganCMNIST", "OrganSMNIST", "PathMNIST", "CIFAR-10"]
    assert columns(page) == names
    assert methods(page) == ["FedAvg", "FedAvg + FLFA", "MOON", "MOON + FLFA"]
    assert len(tables(page)) == 5  # three tables, two kinds of curves
    cell = shown(page, "section[data-metric=score] tr.value > td")[0]
    assert cell == "51.00 ± 1.00\npaper 59.26"


def test_the_console_is_silent(page: webdriver.Chrome) -> None:
    box(page, "moon").click()
    assert page.get_log("browser") == []


def test_a_data_set_can_be_left_out(page: webdriver.Chrome) -> None:
    box(page, "organcmnist").click()
    assert columns(page) == ["BloodMNIST", "OrganSMNIST", "PathMNIST", "CIFAR-10"]
    row = "section[data-metric=score] tr.value"
    assert len(shown(page, f"{row}:first-child > td")) == 4
    assert "OrganCMNIST" not in shown(page, "summary")
    box(page, "organcmnist").click()
    assert len(columns(page)) == 5
    assert "OrganCMNIST" in shown(page, "summary")


def test_a_method_can_be_left_out(page: webdriver.Chrome) -> None:
    before = len(shown(page, "figure"))
    box(page, "moon").click()
    assert methods(page) == ["FedAvg", "FedAvg + FLFA"]
    assert shown(page, "section[data-metric=score] tr.difference > th") == [
        "difference to FedAvg"
    ]
    assert len(shown(page, "figure")) == before / 2


def test_flfa_can_be_left_out(page: webdriver.Chrome) -> None:
    """Also of the curves: one line of two is left in each."""
    curves = "section[data-metric=score] figure:first-child g"
    lines = page.find_elements(By.CSS_SELECTOR, curves)[:2]
    assert [line.is_displayed() for line in lines] == [True, True]
    box(page, "lowest").click()
    assert methods(page) == ["FedAvg", "MOON"]
    assert [line.is_displayed() for line in lines] == [True, False]


@pytest.mark.parametrize(
    ("metric", "start"),
    [("accuracy", "Accuracy"), ("AUC", "Macro-AUC"), ("time", "Time")],
)
def test_one_metric_can_be_chosen(
    page: webdriver.Chrome, metric: str, start: str
) -> None:
    Select(page.find_element(By.ID, "metric")).select_by_visible_text(metric)
    assert tables(page)
    assert all(heading.startswith(start) for heading in tables(page))


def test_nothing_left_is_said(page: webdriver.Chrome) -> None:
    message = page.find_element(By.ID, "nothing")
    for name in ("fedavg", "moon"):
        assert not message.is_displayed()
        box(page, name).click()
    assert message.is_displayed()


def test_all_can_be_shown_again(page: webdriver.Chrome) -> None:
    box(page, "moon").click()
    Select(page.find_element(By.ID, "metric")).select_by_visible_text("time")
    page.find_element(By.CSS_SELECTOR, "button[type=reset]").click()
    WebDriverWait(page, 5).until(lambda _: len(tables(page)) == 5)
    assert len(methods(page)) == 4


def test_a_phone_need_not_scroll_sideways(page: webdriver.Chrome) -> None:
    """With everything unfolded; what is too wide scrolls in a box of its own."""
    assert width_on_a_phone(page, 375) <= 375
    table = page.find_element(By.CSS_SELECTOR, "section[data-metric=score] .scroll")
    inside, outside = page.execute_script(
        "return [arguments[0].scrollWidth, arguments[0].clientWidth]", table
    )
    assert inside > outside
    assert outside <= 375


def test_long_labels_do_not_widen_a_phone(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    """Two further axes and two rules: keys of curves are longer than the screen."""
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
    write_report(results, tmp_path / "report.html")
    browser.get((tmp_path / "report.html").as_uri())
    assert width_on_a_phone(browser, 360) <= 360
    label = "FedAvg + FLFA (lowest), partition dirichlet-0.1, local-epochs 5"
    assert label in shown(browser, ".key")


def test_without_javascript_it_can_be_read(
    browser: webdriver.Chrome, address: str
) -> None:
    command = "Emulation.setScriptExecutionDisabled"
    browser.execute_cdp_cmd(command, {"value": True})
    try:
        browser.get(address)
        assert methods(browser) == ["FedAvg", "FedAvg + FLFA", "MOON", "MOON + FLFA"]
        assert len(tables(browser)) == 5
        # Boxes that do nothing are not offered.
        assert shown(browser, "#filters") == []
    finally:
        browser.execute_cdp_cmd(command, {"value": False})


def test_dark_and_light(page: webdriver.Chrome) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        body = page.find_element(By.TAG_NAME, "body")
        colours[scheme] = body.value_of_css_property("background-color")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert colours == {"light": "rgba(255, 255, 255, 1)", "dark": "rgba(20, 23, 26, 1)"}


def test_on_paper_nothing_is_folded(page: webdriver.Chrome) -> None:
    assert shown(page, "#filters") != []
    folded = page.find_elements(By.CSS_SELECTOR, "details:not([open]) figure")
    seen = "return arguments[0].every(figure => figure.checkVisibility())"
    assert folded
    assert not page.execute_script(seen, folded)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert shown(page, "#filters") == []
        assert page.execute_script(seen, folded)
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
