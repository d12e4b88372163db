"""A real Chromium for the tests of the console, and pages that may say nothing wrong and ask nobody else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.console.console_models import FLAGS, write_console_models
from tests.harness import RunningServer

PATIENCE_MS = 60_000
"""How long something may take to be seen. Nothing waits for it where it is there earlier."""

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium's sandbox wants what containers do not give; the pages are ours.
        started = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tmp_path_factory.mktemp("browser") / "models"
    write_console_models(found)
    return found


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    with RunningServer(repository, flags=FLAGS) as running:
        yield running


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens an address; in the end no page has logged an error or asked another host. ``may_log`` has texts that are due."""
    contexts: list[BrowserContext] = []
    found: list[str] = []

    def opened(
        url: str, *, width: int = 1280, height: int = 900, theme: str = "light", may_log: tuple[str, ...] = ()
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if theme == "dark" else "light",
            permissions=["clipboard-read", "clipboard-write"],
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        host = urlsplit(url).netloc

        def heard(kind: str, text: str) -> None:
            if not any(part in text for part in may_log):
                found.append(f"{kind}: {text}")

        page.on("console", lambda message: heard(message.type, message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: heard("exception", str(error)))
        page.on(
            "request",
            lambda asked: heard("elsewhere", asked.url) if urlsplit(asked.url).netloc not in (host, "") else None,
        )
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert found == []
