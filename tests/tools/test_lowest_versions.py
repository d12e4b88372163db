"""What ``make test-lowest`` holds pip to is what pyproject.toml says."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.harness import PROJECT
from tools import lowest_versions

PYPROJECT = """
[project]
dependencies = [
  "plain>=1.2",
  "Spaced-out [one, two] >= 2.0.1, <3",
  "exact==4",
  "marked>=0.19; sys_platform == 'linux'",
  "unbounded",
]

[project.optional-dependencies]
more = ["other>=5", "other-tools>=6"]
remote = ["this-project[more]"]

[dependency-groups]
tools = ["tool>=7", "unbounded"]
"""


def test_bounds_become_constraints_with_their_markers() -> None:
    expected = ["Spaced-out==2.0.1", "exact==4", "marked==0.19; sys_platform == 'linux'", "plain==1.2"]
    assert lowest_versions.lowest(PYPROJECT) == expected


def test_an_extra_and_one_of_its_requirements_can_be_added() -> None:
    always = set(lowest_versions.lowest(PYPROJECT))
    assert set(lowest_versions.lowest(PYPROJECT, ["more"])) - always == {"other==5", "other-tools==6"}
    assert set(lowest_versions.lowest(PYPROJECT, ["more:other"])) - always == {"other==5"}
    assert set(lowest_versions.lowest(PYPROJECT, ["tools"])) - always == {"tool==7"}


@pytest.mark.parametrize("addition", ["more:othe", "remote"])
def test_what_adds_nothing_is_a_mistake(addition: str) -> None:
    with pytest.raises(ValueError, match=f"nothing that '{addition}' names has a lower bound"):
        lowest_versions.lowest(PYPROJECT, [addition])


def test_every_dependency_of_this_project_is_held_at_a_version_that_it_allows() -> None:
    bounds = re.search(r"^LOWEST_BOUNDS := (.*)$", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert bounds is not None
    command = [sys.executable, "tools/lowest_versions.py", *bounds[1].split()]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    held = {constraint.name: constraint for constraint in map(Requirement, done.stdout.splitlines())}

    project = lowest_versions.tomllib.loads(lowest_versions.PYPROJECT.read_text())["project"]
    for requirement in map(Requirement, project["dependencies"]):
        (version,) = held[requirement.name].specifier
        assert version.operator == "=="
        assert Version(version.version) in requirement.specifier
        lower = [bound for bound in requirement.specifier if bound.operator == ">="]
        assert [bound.version for bound in lower] == [version.version]
        assert str(held[requirement.name].marker) == str(requirement.marker)
