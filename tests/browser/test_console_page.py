"""The console as a person sees it, in a real browser (docs/console.md): ``make test-console``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import OpenPage
from tests.harness import RunningServer, free_ports, tensor, write_model

SIZES = (360, 768, 1280)
PAGES = {
    "models": "/", "request": "/#/models/add_sub", "charts": "/#/models/divide/charts", "log": "/#/models/add_sub/log",
    "configuration": "/#/models/add_sub/configuration", "broken": "/#/models/broken", "errors": "/#/errors",
    "server-log": "/#/log", "docs": "/docs",
}  # fmt: skip
ONE_MODEL = ("--model-control-mode=explicit", "--load-model=add_sub")
ECHO = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
            outputs = [np.where(array == 0, np.nan, array).astype(array.dtype) for array in arrays]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("text", output)]) for output in outputs]
"""
ECHO_CONFIG = """
    backend: "python"
    input [ { name: "IN" data_type: TYPE_%s dims: [ 2 ] } ]
    output [ { name: "text" data_type: TYPE_%s dims: [ 2 ] } ]
"""
ANSWERED_BADLY = "Failed to load resource: the server responded with a status of"
"""What Chromium itself logs of an answer that is an error."""


def url(server: RunningServer, path: str) -> str:
    return f"http://{server.http_url}{path}"


def send(page: Page) -> None:
    page.get_by_role("button", name="Send").click()


def answer(page: Page) -> Locator:
    return page.get_by_role("region", name="Answer")


def type_values(page: Page, name: str, values: str) -> None:
    page.locator(f'[data-input="{name}"] textarea').fill(values)


def row_of(page: Page, model: str) -> Locator:
    return page.locator(f'tr[data-model="{model}"]')


# ------------------------------------------------------------------------------------------- models


def test_models_are_shown_with_their_states_and_the_reason_of_one_that_is_not_ready(
    server: RunningServer, open_page: OpenPage
) -> None:
    page = open_page(url(server, "/"))
    expect(page).to_have_title("Models – pytriton-lite")
    expect(page.locator("tbody th")).to_have_text(["add_sub", "broken", "divide", "mirror", "size", "words"])
    expect(row_of(page, "divide")).to_contain_text("1 READY")
    expect(row_of(page, "divide").get_by_text("2 of 2")).to_be_visible()
    broken = row_of(page, "broken")
    expect(broken).to_contain_text("1 UNAVAILABLE")
    expect(broken).to_contain_text("FileNotFoundError: [Errno 2] No such file or directory: '/there/is/no/such.file'")
    expect(page.get_by_text("5 of 6")).to_be_visible()
    expect(page.locator(".bar")).to_contain_text("ready")


def test_a_model_is_unloaded_loaded_and_reloaded_with_the_keyboard_alone(
    server: RunningServer, open_page: OpenPage
) -> None:
    page = open_page(url(server, "/"))
    unload = page.get_by_role("button", name="Unload size")
    unload.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Unload size? New requests for it are refused")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(row_of(page, "size")).to_contain_text("1 READY")
    unload.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")  # from Keep, which a hasty Enter would take, to Unload
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="size is being unloaded")).to_be_visible()
    expect(row_of(page, "size")).to_contain_text("1 UNAVAILABLE")
    assert server.get("/v2/models/size/ready").status == 400
    load = page.get_by_role("button", name="Load size", exact=True)
    load.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="size is loaded.")).to_be_visible()
    expect(row_of(page, "size")).to_contain_text("1 READY")
    assert server.get("/v2/models/size/ready").status == 200
    page.get_by_role("button", name="Reload size").click()
    expect(page.get_by_role("status").filter(has_text="size is loaded anew")).to_be_visible()


def test_a_load_that_fails_says_why_in_the_servers_words(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(url(server, "/#/models/broken"), may_log=(ANSWERED_BADLY,))
    expect(page.get_by_text("No request can be sent to it now.")).to_be_visible()
    page.get_by_role("button", name="Load broken").click()
    expect(page.get_by_role("alert").filter(has_text="broken: ")).to_contain_text(
        server.post("/v2/repository/models/broken/load").error.splitlines()[0]
    )


# ------------------------------------------------------------------------------------------- requests


def test_numbers_are_sent_and_the_outputs_shown(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(url(server, "/#/models/add_sub"))
    type_values(page, "INPUT0", "10, 20 30\n40")
    type_values(page, "INPUT1", "[1, 2, 3, 4.5]")
    send(page)
    expect(answer(page).locator('[data-output="SUM"] pre')).to_have_text("[11, 22, 33, 44.5]")
    expect(answer(page).locator('[data-output="DIFFERENCE"]')).to_contain_text("FP32 [4]")
    expect(page.get_by_role("status").filter(has_text="Answered in")).to_be_visible()


@pytest.mark.parametrize(
    ("values", "data"), [("1, 2, 3", [1, 2, 3]), ("1, 2, three, 4", [1, 2, "three", 4])], ids=["too few", "no number"]
)
def test_what_does_not_fit_is_answered_in_the_servers_own_words(
    server: RunningServer, open_page: OpenPage, values: str, data: list[Any]
) -> None:
    page = open_page(url(server, "/#/models/add_sub"), may_log=(ANSWERED_BADLY,))
    type_values(page, "INPUT0", values)
    send(page)
    inputs = [tensor("INPUT0", "FP32", [4], data), tensor("INPUT1", "FP32", [4], [1.0, 2.0, 3.0, 4.0])]
    refused = server.infer("add_sub", inputs)
    expect(page.get_by_role("alert")).to_have_text(f"The server answered {refused.status}: {refused.error}")


def test_an_execution_that_fails_is_shown_and_among_the_errors(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(url(server, "/#/models/divide"), may_log=(ANSWERED_BADLY,))
    type_values(page, "B", "0")
    send(page)
    expect(page.get_by_role("alert")).to_contain_text("ZeroDivisionError: integer division or modulo by zero")
    page.get_by_role("link", name="Errors").click()
    expect(page.get_by_role("heading", name="Errors")).to_be_focused()
    first = page.locator("ol.lines > li").first
    expect(first).to_contain_text("ZeroDivisionError")
    expect(first.locator("pre")).to_contain_text("/divide/1/model.py")
    expect(first.locator("pre")).to_be_visible()
    expect(first.get_by_role("link")).to_have_attribute("href", "#/models/divide")


def test_integers_that_no_double_holds_come_back_as_they_are(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(url(server, "/#/models/divide"))
    type_values(page, "A", "9007199254740993")
    type_values(page, "B", "1")
    send(page)
    expect(answer(page).locator('[data-output="Q"] pre')).to_have_text("[[9007199254740993]]")


def choose_route(page: Page, route: str) -> None:
    page.get_by_text("Version, route, id and parameters").click()
    page.get_by_label("Route").select_option(route)


@pytest.mark.parametrize("route", ["infer", "generate", "generate_stream"])
def test_numbers_that_json_has_not_are_shown_as_they_are(
    server: RunningServer, open_page: OpenPage, route: str
) -> None:
    page = open_page(url(server, "/#/models/add_sub"))
    type_values(page, "INPUT0", "1e39, -1e39, 1, 2")
    type_values(page, "INPUT1", "1e39, 1, 1, 2")
    choose_route(page, route)
    send(page)
    expect(answer(page)).to_contain_text("[Infinity, -Infinity, 2, 4]")
    expect(answer(page)).to_contain_text("[NaN, -Infinity, 0, 0]")


def test_a_half_precision_number_that_is_none_is_shown_as_it_is(open_page: OpenPage, tmp_path: Path) -> None:
    write_model(tmp_path, "echo", ECHO, ECHO_CONFIG % ("FP16", "FP16"))
    with RunningServer(tmp_path) as running:
        page = open_page(url(running, "/#/models/echo"))
        type_values(page, "IN", "0, 1e9")
        send(page)
        expect(answer(page).locator('[data-output="text"] pre')).to_have_text("[NaN, Infinity]")


def test_generate_shows_integers_that_no_double_holds_as_they_are(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(url(server, "/#/models/divide"))
    type_values(page, "A", "9007199254740993")
    type_values(page, "B", "1")
    choose_route(page, "generate")
    send(page)
    expect(answer(page).locator("dd pre")).to_have_text("9007199254740993")


def test_an_answer_is_shown_whole_whatever_its_outputs_are_called(open_page: OpenPage, tmp_path: Path) -> None:
    write_model(tmp_path, "echo", ECHO, ECHO_CONFIG % ("FP32", "FP32"))
    with RunningServer(tmp_path) as running:
        page = open_page(url(running, "/#/models/echo"))
        type_values(page, "IN", "1, 2")
        choose_route(page, "generate")
        send(page)
        answer(page).get_by_text("Document").click()
        expect(answer(page).locator("details pre")).to_contain_text('"model_name": "echo"')


def test_an_image_file_is_sent_as_pixels_and_an_image_comes_back(
    server: RunningServer, open_page: OpenPage, tmp_path: Path
) -> None:
    photo = write_photo(tmp_path)
    page = open_page(url(server, "/#/models/mirror"))
    page.get_by_label("Image file").set_input_files(photo)
    expect(page.get_by_role("img", name="photo.png, 40 by 30 pixels")).to_be_visible()
    send(page)
    mirrored = page.get_by_role("img", name="MIRRORED as a picture")
    expect(mirrored).to_be_visible()
    pixel = "canvas => [...canvas.getContext('2d').getImageData(35, 10, 1, 1).data]"
    assert mirrored.evaluate(pixel) == [255, 0, 0, 255]
    expect(answer(page).locator('[data-output="MEAN"] pre')).to_have_text("[63.75, 0, 191.25]")


def write_photo(folder: Path) -> Path:
    """A picture whose left quarter is red, and the rest blue."""
    from PIL import Image

    picture = Image.new("RGB", (40, 30), (0, 0, 255))
    picture.paste((255, 0, 0), (0, 0, 10, 30))
    picture.save(folder / "photo.png")
    return folder / "photo.png"


def test_the_bytes_of_a_file_are_one_element(server: RunningServer, open_page: OpenPage, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(range(256)) * 5)
    page = open_page(url(server, "/#/models/size"))
    page.get_by_role("radio", name="File").check()
    send(page)
    expect(page.get_by_role("alert")).to_have_text("FILE: choose a file first")
    page.get_by_label("File", exact=True).last.set_input_files(tmp_path / "data.bin")
    send(page)
    expect(answer(page).locator('[data-output="SIZE"] pre')).to_have_text("[[1280]]")


def test_responses_of_a_stream_are_shown_as_they_come(
    server: RunningServer, open_page: OpenPage, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    text = f"<b>one</b> two until:{seen} three"
    page = open_page(url(server, "/#/models/words"))
    type_values(page, "TEXT", text)
    try:
        send(page)
        events = page.get_by_role("list", name="Responses").get_by_role("listitem")
        expect(events.nth(1)).to_contain_text("two")
        expect(page.get_by_text(re.compile("responses so far"))).to_be_visible()  # before the last one is sent
    finally:
        seen.touch()
    expect(events).to_have_count(4)
    expect(page.get_by_text(re.compile("The stream has ended: 4 responses"))).to_be_visible()
    expect(page.locator(".joined")).to_have_text(text)


def test_pieces_of_a_text_that_has_its_spaces_are_put_together_as_they_are(
    server: RunningServer, open_page: OpenPage
) -> None:
    page = open_page(url(server, "/#/models/words"))
    type_values(page, "TEXT", "Well|,| tok|ens| and| words|.")
    send(page)
    expect(page.get_by_text(re.compile("The stream has ended: 7 responses"))).to_be_visible()
    expect(page.locator(".joined")).to_have_text("Well, tokens and words.")


def test_a_stream_is_cancelled_by_its_button(server: RunningServer, open_page: OpenPage, tmp_path: Path) -> None:
    cancelled = tmp_path / "cancelled"
    page = open_page(url(server, "/#/models/words"))
    type_values(page, "TEXT", f"one until:{cancelled}")
    try:
        send(page)
        expect(page.get_by_role("list", name="Responses")).to_contain_text("one")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text(re.compile("Cancelled after"))).to_be_visible()
    finally:
        cancelled.touch()  # the model is to go on with the next request
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


# ------------------------------------------------------------------------------------------- code


def code_of(page: Page, language: str) -> str:
    panel = page.get_by_role("region", name="The request as code")
    panel.get_by_role("tab", name=language).click()
    panel.get_by_role("button", name="Copy").click()
    expect(panel.get_by_text("Copied")).to_be_visible()
    text = panel.locator("pre:visible").inner_text()
    assert page.evaluate("navigator.clipboard.readText()") == text
    return text


def run_code(language: str, code: str, folder: Path) -> str:
    command = ["bash", "-c", code] if language == "curl" else [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, f"{code}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("curl", r'"name":"SUM",.*"data":\[5\.0,7\.0,9\.0,11\.0\]'),
        ("Python, HTTP", r"SUM \[ 5\.  7\.  9\. 11\.\]"),
        ("Python, gRPC", r"SUM \[ 5\.  7\.  9\. 11\.\]"),
    ],
)
def test_the_code_of_a_request_runs(
    server: RunningServer, open_page: OpenPage, tmp_path: Path, language: str, expected: str
) -> None:
    page = open_page(url(server, "/#/models/add_sub"))
    type_values(page, "INPUT0", "4, 5, 6, 7")
    page.get_by_text("Version, route, id and parameters").click()
    page.get_by_label("Request id").fill("it's 7")
    expect(page.locator("pre:visible").first).to_contain_text("s 7")
    assert re.search(expected, run_code(language, code_of(page, language), tmp_path))


def test_parameters_are_sent_as_they_were_typed(open_page: OpenPage, tmp_path: Path) -> None:
    code = ECHO.replace("np.nan", "__import__('json').loads(requests[0].parameters())['seed'] % 10")
    write_model(tmp_path, "echo", code, ECHO_CONFIG % ("FP32", "FP32"))
    with RunningServer(tmp_path) as running:
        page = open_page(url(running, "/#/models/echo"))
        type_values(page, "IN", "0, 1")
        page.get_by_text("Version, route, id and parameters").click()
        page.get_by_label("Parameters, a JSON object").fill('{"seed": 9007199254740993}')
        send(page)
        expect(answer(page).locator('[data-output="text"] pre')).to_have_text("[3, 1]")
        expect(page.locator("pre:visible").last).to_contain_text("9007199254740993")
        page.get_by_label("Parameters, a JSON object").fill("9007199254740993")
        send(page)
        expect(page.get_by_role("alert")).to_have_text("Parameters: a JSON object was expected (no object)")


@pytest.mark.parametrize("language", ["curl", "Python, HTTP", "Python, gRPC"])
def test_the_code_of_a_stream_runs(server: RunningServer, open_page: OpenPage, tmp_path: Path, language: str) -> None:
    page = open_page(url(server, "/#/models/words"))
    type_values(page, "TEXT", "it's \"one\" \\ 'two'")
    expect(page.locator("pre:visible").first).to_contain_text("two")
    said = run_code(language, code_of(page, language), tmp_path)
    assert [said.find(word) >= 0 for word in ("it's", "one", "two")] == [True, True, True]
    assert said.count("WORD") == 4


def test_the_code_of_a_file_runs(server: RunningServer, open_page: OpenPage, tmp_path: Path) -> None:
    (tmp_path / "a file's.bin").write_bytes(b"12345")
    page = open_page(url(server, "/#/models/size"))
    page.get_by_role("radio", name="File").check()
    page.get_by_label("File", exact=True).last.set_input_files(tmp_path / "a file's.bin")
    expect(page.locator("pre:visible").first).to_contain_text("s.bin")
    run_code("curl", code_of(page, "curl"), tmp_path)
    assert (tmp_path / "answer.bin").read_bytes().endswith(b"\x05\x00\x00\x00")
    assert "SIZE [[5]]" in run_code("Python, gRPC", code_of(page, "Python, gRPC"), tmp_path)


def test_the_code_of_an_image_runs(server: RunningServer, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(url(server, "/#/models/mirror"))
    page.get_by_label("Image file").set_input_files(write_photo(tmp_path))
    expect(page.get_by_role("img", name="photo.png, 40 by 30 pixels")).to_be_visible()
    expect(page.locator("pre:visible").first).to_contain_text("comes from a file")
    # What is shown follows the picture a moment later, and what is copied before that is of another one.
    page.get_by_role("region", name="The request as code").get_by_role("tab", name="Python, HTTP").click()
    expect(page.locator("pre:visible").first).to_contain_text("photo.png")
    assert "MEAN [ 63.75   0.   191.2 ]" in run_code("Python, HTTP", code_of(page, "Python, HTTP"), tmp_path)


# ------------------------------------------------------------------------------------------- charts, log, configuration


def test_charts_follow_what_the_server_does(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(url(server, "/#/models/divide/charts"))
    chart = page.get_by_role("img", name=re.compile("Throughput, per second, now: inferences 0"))
    expect(chart).to_be_visible()  # there are two samples, and nothing happened between them
    inputs = [tensor("A", "INT64", [3, 1], [6, 6, 6]), tensor("B", "INT64", [3, 1], [2, 2, 2])]
    is_over = threading.Event()

    def ask_on() -> None:
        """What the chart says of now is of the last two seconds, so the requests go on as long as somebody looks."""
        while not is_over.is_set():
            server.infer("divide", inputs)

    asking = threading.Thread(target=ask_on)
    asking.start()
    try:
        expect(page.get_by_role("img", name=re.compile(r"Throughput, .*now: inferences [1-9]"))).to_be_visible()
        expect(page.get_by_role("img", name=re.compile(r"Batch, .*now: size 3;"))).to_be_visible()
    finally:
        is_over.set()
        asking.join()
    sizes = (
        page.locator("figure", has_text="Batch sizes")
        .get_by_role("listitem")
        .filter(has=page.get_by_text("3", exact=True))
    )
    expect(sizes).to_contain_text(re.compile(r"\d+ · "))
    instances = page.get_by_role("table", name="Instances")
    expect(instances.get_by_role("row")).to_have_count(3)
    expect(instances).to_contain_text(str(server.worker_pids("divide")[0]))
    expect(page.get_by_text(re.compile(r"\d+ requests answered, \d+ failed"))).to_be_visible()


def test_what_a_model_prints_comes_to_its_log_and_can_be_searched(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(url(server, "/#/models/add_sub/log"))
    inputs = [tensor(name, "FP32", [4], [5, 6, 7, 8]) for name in ("INPUT0", "INPUT1")]
    assert server.infer("add_sub", inputs).status == 200
    printed = (
        page.get_by_role("tabpanel", name="Log").get_by_role("listitem").filter(has_text="adding [5.0, 6.0, 7.0, 8.0]")
    )
    expect(printed.first).to_be_visible()
    expect(printed.first).to_contain_text("stdout")
    page.get_by_label("Lines that contain").fill("nothing like it")
    expect(printed.first).to_be_hidden()
    page.get_by_label("Lines that contain").fill("ADDING")
    expect(printed.first).to_be_visible()
    page.get_by_label("Severity at least").select_option("error")
    expect(printed.first).to_be_hidden()


def test_a_configuration_is_shown_as_given_and_as_completed(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(url(server, "/#/models/add_sub/configuration"))
    expect(page.get_by_role("region", name="As given")).to_contain_text("# Two vectors in.")
    expect(page.get_by_role("region", name="As completed")).to_contain_text('"name": "add_sub"')
    expect(page.get_by_role("region", name="As completed")).to_contain_text('"version_policy"')


def test_tabs_and_the_skip_link_are_for_the_keyboard(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(url(server, "/#/models/add_sub"))
    tabs = page.get_by_role("tablist", name="Parts of add_sub")
    tabs.get_by_role("tab", name="Request").focus()
    for key, name in (
        ("ArrowRight", "Charts"),
        ("End", "Configuration"),
        ("ArrowRight", "Request"),
        ("ArrowLeft", "Configuration"),
    ):
        page.keyboard.press(key)
        tab = tabs.get_by_role("tab", name=name)
        expect(tab).to_be_focused()
        expect(tab).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
    assert page.url.endswith("#/models/add_sub/configuration")
    page.reload()
    expect(page.get_by_role("tabpanel", name="Configuration")).to_be_visible()
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    skip.focus()
    expect(skip).to_be_in_viewport()


# ------------------------------------------------------------------------------------------- /docs


def test_the_api_is_described_with_an_example_that_each_model_takes(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(url(server, "/docs"))
    served = page.get_by_role("region", name="Served models").locator("details.operation")
    expect(served.locator(".path")).to_have_text([
        "/v2/models/add_sub/infer", "/v2/models/divide/infer", "/v2/models/mirror/infer", "/v2/models/size/infer",
        "/v2/models/words/generate_stream",
    ])  # fmt: skip
    first = served.first
    first.locator("summary").first.click()
    expect(first.get_by_label("Body")).to_have_value(re.compile(r'"name": "INPUT0"'))
    first.get_by_role("button", name="Send").click()
    expect(first.get_by_text(re.compile("^200 OK"))).to_be_visible()
    expect(first.locator("pre.tried")).to_contain_text('"SUM"')
    expect(first.get_by_role("table")).to_contain_text("The request does not suit the model")
    page.get_by_label("Find a route").fill("logging")
    expect(page.locator("details.operation:visible")).to_have_count(2)


# ------------------------------------------------------------------------------------------- everybody, everywhere


@pytest.mark.parametrize(("theme", "judged"), [("light", 1280), ("dark", 360)])
def test_every_page_fits_and_breaks_no_rule_of_accessibility(
    server: RunningServer, open_page: OpenPage, theme: str, judged: int
) -> None:
    """axe, which knows contrast, names, roles and the like, judges at one width: it takes its time.

    With CONSOLE_SCREENSHOTS=<folder> the pages are kept as pictures.
    """
    folder = os.environ.get("CONSOLE_SCREENSHOTS")
    server.infer("divide", [tensor("A", "INT64", [1, 1], [1]), tensor("B", "INT64", [1, 1], [0])])
    page = open_page(url(server, "/"), theme=theme, may_log=(ANSWERED_BADLY,))
    for name, path in PAGES.items():
        page.goto("about:blank")
        page.goto(url(server, path))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Asking")).to_have_count(0)
        for width in SIZES:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            if folder:
                page.screenshot(path=f"{folder}/{name}-{width}-{theme}.png", full_page=True)
        page.set_viewport_size({"width": judged, "height": 900})
        broken = [(rule["id"], rule["nodes"][0]["html"]) for rule in Axe().run(page).response["violations"]]
        assert broken == [], name


def test_a_lost_server_is_said_and_the_page_goes_on_with_what_was_typed_when_it_is_back(
    repository: Path, open_page: OpenPage
) -> None:
    """What was typed stays when the model is unloaded and loaded, too: whoever writes one does so again and again."""
    ports = free_ports(3)
    flags = (
        *ONE_MODEL,
        "--load-model=words",
        *(f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports)),
    )
    with RunningServer(repository, flags=flags) as first:
        page = open_page(url(first, "/#/models/add_sub"), may_log=("ERR_", "Failed to load resource"))
        type_values(page, "INPUT0", "5, 5, 5, 5")
        page.get_by_role("button", name="Unload add_sub").click()
        page.get_by_role("dialog").get_by_role("button", name="Unload").click()
        expect(page.get_by_text("No request can be sent to it now.")).to_be_visible()
        page.get_by_role("button", name="Load add_sub", exact=True).click()
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        expect(page.locator('[data-input="INPUT0"] textarea')).to_have_value("5, 5, 5, 5")
        stream = open_page(url(first, "/#/models/words"), may_log=("ERR_", "Failed to load resource"))
        type_values(stream, "TEXT", "one " + "wait " * 100)
        send(stream)
        expect(stream.get_by_role("list", name="Responses")).to_contain_text("one")
        first.kill()
        expect(stream.get_by_text("The server was lost in the middle of the stream.")).to_be_visible()
        lost = page.get_by_role("alert").filter(has_text="The server cannot be reached")
        expect(lost).to_be_visible()
    with RunningServer(repository, flags=flags):
        expect(page.get_by_role("status").filter(has_text="The server is back.")).to_be_visible()
        expect(lost).to_have_count(0)
        expect(page.locator('[data-input="INPUT0"] textarea')).to_have_value("5, 5, 5, 5")
        send(page)
        expect(answer(page).locator('[data-output="SUM"] pre')).to_have_text("[6, 7, 8, 9]")


@pytest.mark.parametrize("asked", ["v2/repository/index", "v2/models/add_sub"])
def test_whatever_finds_the_server_lost_it_is_said_once_and_what_was_asked_for_comes_when_it_is_back(
    asked: str, server: RunningServer, open_page: OpenPage
) -> None:
    page = open_page(url(server, "/docs"), may_log=("ERR_", "Failed to load resource"))
    page.route(f"**/{asked}", lambda route: route.abort("connectionrefused"), times=1)
    page.goto(url(server, "/#/models/add_sub"))
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    expect(page.get_by_role("status").filter(has_text="The server is back.")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    send(page)
    expect(answer(page).locator('[data-output="SUM"] pre')).to_have_text("[2, 4, 6, 8]")


def test_a_restricted_page_asks_for_the_header_and_works_with_it(repository: Path, open_page: OpenPage) -> None:
    categories = "metadata,statistics,logging,model-config,model-repository,inference"
    with RunningServer(repository, flags=(*ONE_MODEL, f"--http-restricted-api={categories}:X-Key=s3cret")) as server:
        page = open_page(url(server, "/"), may_log=(ANSWERED_BADLY,))
        value = page.get_by_label(re.compile("Its value of the header X-Key"))
        expect(page.locator("tbody th")).to_have_count(0)
        value.fill("s3cret")
        page.get_by_role("button", name="Use").click()
        expect(row_of(page, "add_sub")).to_contain_text("1 READY")
        row_of(page, "add_sub").get_by_role("link").click()
        send(page)
        expect(answer(page).locator('[data-output="SUM"] pre')).to_have_text("[2, 4, 6, 8]")
        page.goto(url(server, "/docs"))
        expect(page.locator(".path").first).to_have_text("/v2/models/add_sub/infer")


def test_where_models_do_not_change_on_request_there_are_no_buttons_but_a_sentence(
    tmp_path: Path, repository: Path, open_page: OpenPage
) -> None:
    (tmp_path / "add_sub").symlink_to(repository / "add_sub")
    with RunningServer(tmp_path, flags=("--frontends=1",)) as server:
        page = open_page(url(server, "/"))
        expect(row_of(page, "add_sub")).to_contain_text("1 READY")
        expect(page.get_by_text("Models stay as they were at the start.")).to_be_visible()
        expect(page.get_by_role("button")).to_have_count(0)
