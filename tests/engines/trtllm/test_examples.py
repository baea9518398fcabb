"""The examples are what is rendered, and what lints have nothing against."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

from tests.engines.trtllm import examples
from tests.test_packaging import lint, tool

LINT = YamlLintConfig("extends: default\nrules: {line-length: {max: 100}}")
KUBERNETES = "1.37.0"


def test_they_are_as_they_are_rendered() -> None:
    """After a change: python -m tests.engines.trtllm.examples."""
    for name, text in examples.rendered().items():
        assert (examples.FOLDER / name).read_text() == text, name


@pytest.mark.parametrize("name", ["guarded.yaml", "kubernetes.yaml"])
def test_yaml_has_no_lint(name: str) -> None:
    text = (examples.FOLDER / name).read_text()
    assert [str(problem) for problem in linter.run(text, LINT)] == []


@pytest.mark.skipif(
    find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed"
)
@pytest.mark.parametrize(("name", "objects"), [("guarded.yaml", 6), ("kubernetes.yaml", 10)])
def test_kubernetes_takes_each_object(name: str, objects: int) -> None:
    import kubernetes_validate

    found = list(yaml.safe_load_all((examples.FOLDER / name).read_text()))
    assert len(found) == objects
    for one in found:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_the_script_has_no_lint() -> None:
    assert (
        lint(tool("shellcheck"), "--norc", "--severity=style", examples.FOLDER / "slurm.sh") == ""
    )
