"""The tool that changes the product to see whether a test fails."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import PROJECT
from tools.mutants.choice import Chooser, Mutant, draw, within
from tools.mutants.coverage_map import TestFile as Recorded
from tools.mutants.coverage_map import room_of
from tools.mutants.judging import Judgement, Verdict
from tools.mutants.operators import mutations
from tools.mutants.report import interval, mutants_report


def changed(source: str) -> list[str]:
    return [mutation.apply(source) for mutation in mutations(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", ["x = a <= b"]),
        ("x = (a) not in (b)", ["x = (a) in (b)"]),
        ("x = a and b or c", ["x = a or b or c", "x = a and b and c"]),
        ("x = a + 1", ["x = a - 1", "x = a + 2"]),
        ("x = not a", ["x = (a)"]),
        ("x = True", ["x = False"]),
        ("x = 2.5", ["x = 5.0"]),
        ("f(a)", ["pass"]),
        ("x += a", ["pass"]),
        ("del x[a]", ["pass"]),
        ("raise A from b", ["pass"]),
        ("while a: break", ["while (not (a)): break", "while a: continue"]),
        ("x = b if c(d) else e", ["x = b if (not (c(d))) else e"]),
        ("x = [a for a in b if a]", ["x = [a for a in b if (not (a))]"]),
        ("def f(): return a", ["def f(): return None"]),
        ("def f(): return lambda: 0", ["def f(): return None", "def f(): return lambda: 1"]),
        ("s = 'ä'; x = a - b", ["s = 'ä'; x = a + b"]),
        ("async def f(x=0):\n  await g(x)", ["async def f(x=1):\n  await g(x)", "async def f(x=0):\n  pass"]),
    ],
)
def test_a_mutation_changes_one_thing(source: str, expected: list[str]) -> None:
    assert changed(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "def f(x: int | None, y: Literal[1]) -> A[2]: ...",
        "x: Final[int | None] = y",
        "A = Callable[[int], B] | None",
        "if TYPE_CHECKING:\n  x = 1",
        "class A(Protocol):\n  x = 1",
        "x = cast('int | None', y)",
        "def f(): return None",
        "def f(): return",
        "x = f'{a + 1}'",
        "x = 'text' % a",
    ],
)
def test_what_no_test_can_see_is_left_alone(source: str) -> None:
    assert changed(source) == []


def test_all_mutants_of_the_product_are_python() -> None:
    """In a few large files; that changes stay within their lines is what makes a place in the report true."""
    for name in ("frontends/listener.py", "ipc/messages.py", "engine/serving/dispatch.py"):
        source = (PROJECT / "pytriton_lite" / name).read_text()
        for mutation in mutations(source)[::7]:
            mutated = mutation.apply(source)
            ast.parse(mutated)
            first, last = mutation.statement
            assert source.splitlines()[: mutation.line - 1] == mutated.splitlines()[: mutation.line - 1]
            assert first <= mutation.line <= last


def test_more_mutants_of_a_seed_begin_with_the_same_ones() -> None:
    sources = {"b.py": "x = a + b\ny = a < b\nz = 7\n", "a.py": "f()\ng()\n"}
    few, many = draw(sources, 3, seed=5), draw(dict(reversed(sources.items())), 99, seed=5)
    assert [mutant.key for mutant in many[:3]] == [mutant.key for mutant in few]
    assert len({mutant.key for mutant in many}) == len(many) == 5
    assert many != draw(sources, 99, seed=6)


SOURCE = """\
LIMIT = 3

def f(x):
    return x < 1

def g():
    f(
        2,
    )
"""
NAME = "pytriton_lite/core/a.py"


def covering(mutated_line: int, files: list[Recorded]) -> list[str]:
    [mutation, *_] = [found for found in mutations(SOURCE) if found.line == mutated_line]
    return [file.name for file in Chooser(files).covering(Mutant(NAME, mutation), SOURCE)]


def recorded(name: str, seconds: float, *lines: int) -> Recorded:
    return Recorded(name, seconds, [], {NAME: frozenset(lines)})


def test_files_that_run_the_line_are_tried_those_of_the_room_and_quick_ones_first() -> None:
    files = [
        recorded("tests/ipc/test_slow.py", 9, 4),
        recorded("tests/ipc/test_quick.py", 1, 4),
        recorded("tests/core/test_a.py", 3, 4),
        recorded("tests/core/test_other.py", 1, 7),
    ]
    assert covering(4, files) == ["tests/core/test_a.py", "tests/ipc/test_quick.py", "tests/ipc/test_slow.py"]


def test_a_line_within_a_statement_is_run_with_the_statement() -> None:
    assert covering(8, [recorded("tests/core/test_a.py", 1, 7), recorded("tests/core/test_b.py", 1, 4)]) == [
        "tests/core/test_a.py"
    ]


def test_a_constant_of_a_module_is_tried_where_a_function_of_the_module_runs() -> None:
    imported = recorded("tests/core/test_imports.py", 1, 1, 3, 6)
    assert covering(1, [imported, recorded("tests/core/test_a.py", 1, 1, 3, 4, 6)]) == ["tests/core/test_a.py"]


def test_one_file_is_tried_however_long_it_takes() -> None:
    files = [recorded("tests/a.py", 50, 1), recorded("tests/b.py", 1, 1)]
    assert within(files, 3) == files[:1]
    assert within(files[::-1], 3) == files[1:]
    assert within(files, 51) == files


@pytest.mark.parametrize(
    ("name", "room"),
    [
        ("pytriton_lite/app.py", "pytriton_lite"),
        ("pytriton_lite/core/tensor.py", "core"),
        ("pytriton_lite/engine/server.py", "engine"),
        ("pytriton_lite/engine/serving/dispatch.py", "engine/serving"),
        ("model_api/triton_python_backend_utils/__init__.py", "model_api"),
    ],
)
def test_rooms_are_those_of_the_design(name: str, room: str) -> None:
    assert room_of(name) == room


def test_interval_is_wilsons() -> None:
    low, high = interval(240, 300)
    assert (round(low, 3), round(high, 3)) == (0.751, 0.841)
    assert interval(10, 10)[1] == pytest.approx(1)


def test_report_names_survivors_with_their_change() -> None:
    def judged(line: int, verdict: Verdict) -> Judgement:
        return Judgement(f"{line}", f"a.py:{line}", "logic", ("x and y", "x or y"), verdict, "", 9, ("t.py",) * 4)

    report = mutants_report([judged(1, Verdict.CAUGHT), judged(2, Verdict.HUNG), judged(3, Verdict.SURVIVED)])
    assert report.startswith(
        "2 of 3 mutants were caught: 66.7 % (95 %: 20.8 to 93.9); 1 of them because a test did not end."
    )
    assert "| logic | 3 | 2 |" in report
    assert "a.py:3 survived (4 of 9 test files)\n  - x and y\n  + x or y\n" in report
    assert "a.py:1" not in report


PRODUCT = """\
def here(x):
    return not x

def forked():
    return 3

def unseen(x):
    print(x)
"""
TESTS = """\
import subprocess
import sys

from pytriton_lite import it

def test_here():
    assert it.here(0) and not it.here(1)

def test_in_a_process_that_a_started_one_has_forked():
    program = '''
import os
from pytriton_lite import it
if os.fork() == 0:
    print(it.forked(), flush=True)
    os._exit(0)
os.wait()
'''
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "3\\n"
"""


MORE_TESTS = """\
from pytriton_lite import it

def test_unseen(capsys):
    it.unseen(7)
    assert capsys.readouterr().out == "7\\n"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the tool finds what mutants leave behind in /proc")
def test_a_small_project_is_recorded_and_judged(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    files = {
        "pytriton_lite/__init__.py": "",
        "pytriton_lite/pytest_plugin.py": "",  # the environment's pytest looks for it
        "pytriton_lite/it.py": PRODUCT,
        "tests/core/test_it.py": TESTS,
        "tests/core/test_other.py": "def test_nothing():\n    pass\n",
        "tools/__init__.py": "",
    }
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tree, check=True)
    subprocess.run(["git", "add", "--all"], cwd=tree, check=True)
    work = tmp_path / "work"

    def run() -> tuple[str, dict[tuple[str, str], str]]:
        """The report, and the verdicts by place and changed line."""
        done = subprocess.run(
            [sys.executable, "-m", "tools.mutants", f"--tree={tree}", f"--work={work}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        judged = [json.loads(line) for line in (work / "judgements_1.jsonl").read_text().splitlines()]
        return done.stdout, {(one["place"], one["change"][1]): one["verdict"] for one in judged}

    report, verdicts = run()
    document = json.loads((work / "recording/files/tests.core.test_it.json").read_text())
    assert document["lines"] == {"pytriton_lite/it.py": [1, 2, 4, 5, 7]}  # the process imported it, too
    expected = {
        ("pytriton_lite/it.py:2", "return (x)"): "caught",
        ("pytriton_lite/it.py:2", "return None"): "caught",
        ("pytriton_lite/it.py:5", "return 4"): "caught",
        ("pytriton_lite/it.py:5", "return None"): "caught",
        ("pytriton_lite/it.py:8", "pass"): "not run",
    }
    assert verdicts == expected
    assert "| pytriton_lite | 6 | 83.3 % |" in report
    assert "4 of 5 mutants were caught" in report

    # With a test of that line the next run goes on: nothing else is recorded or judged again.
    (tree / "tests/core/test_more.py").write_text(MORE_TESTS)
    subprocess.run(["git", "add", "--all"], cwd=tree, check=True)
    report, verdicts = run()
    assert verdicts == {**expected, ("pytriton_lite/it.py:8", "pass"): "caught"}
    assert report.startswith("1 test files from tests/core/test_more.py on: ")
    assert report.count("\ncaught: ") == 1
    assert "5 of 5 mutants were caught" in report
