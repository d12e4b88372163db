"""How long a stranger waits from ``pip install`` to the first answer in the console.

    CHROMIUM=$(tools/chromium.sh) python -m tests.browser.first_answer dist/pytriton_lite-*.whl

Makes an environment, then measures: the wheel and its dependencies are installed, a server with one model is ready, its console
is opened in a browser, and the form is sent as it stands. Packages come from wherever pip takes them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from pytriton_lite.testing import RunningServer
from tests.console.console_models import ADD_SUB, ADD_SUB_CONFIG
from tests.harness import write_model


def measure(wheel: Path) -> None:
    """Print the seconds since the beginning at each step."""
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        home = Path(temporary)
        write_model(home / "models", "add_sub", ADD_SUB, ADD_SUB_CONFIG)
        venv.create(home / "env", with_pip=True)
        python = str(home / "env" / "bin" / "python")
        # The browser of a person is running already.
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
        began = time.monotonic()

        def tell(what: str) -> None:
            print(f"{time.monotonic() - began:6.1f} s  {what}")

        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", str(wheel.resolve())], check=True)
        tell("installed")
        with RunningServer(home / "models", python=(python,), cwd=home) as server:
            tell("the server is ready")
            page = browser.new_page()
            page.goto(f"http://{server.http_url}/")
            page.get_by_role("link", name="add_sub").click()
            tell("the form is there")
            page.get_by_role("button", name="Send").click()
            expect(page.locator('[data-output="SUM"] pre')).to_have_text("[2, 4, 6, 8]")
            tell("the first answer")
        browser.close()


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
