"""The package itself: its samples run, its types are complete, its names are documented."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import riffle
from riffle import _riffle

README = (ROOT / "crates/python/README.md").read_text()


@pytest.mark.parametrize("number", range(len(re.findall(r"```python\n", README))))
def test_samples_of_the_readme_run(number):
    sample = re.findall(r"```python\n(.*?)```", README, re.S)[number]
    if "transformers" in sample:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    done = subprocess.run([sys.executable, "-c", sample], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_samples_of_the_book_are_python():
    samples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/book/src/python.md").read_text(), re.S)
    assert len(samples) > 4
    for sample in samples:
        ast.parse(sample)


def test_the_stub_has_everything_of_the_native_module():
    folder = Path(riffle.__file__).parent
    assert (folder / "py.typed").exists()
    stub = ast.parse((folder / "_riffle.pyi").read_text())
    named = {node.name: node for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    native = {name for name in dir(_riffle) if not name.startswith("_")}
    assert native == set(named)
    for name, node in named.items():
        if isinstance(node, ast.ClassDef):
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            of_class = {item for item in vars(getattr(_riffle, name)) if not item.startswith("_")}
            assert of_class == {method for method in methods if not method.startswith("_")}, name


def test_public_names_are_documented():
    from riffle import evaluation, pictures

    modules = [riffle, riffle.errors, evaluation, pictures]
    for module in modules:
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert inspect.getdoc(thing), f"{module.__name__}.{name}"
                for method, function in vars(thing).items() if inspect.isclass(thing) else ():
                    if inspect.isfunction(function) and not method.startswith("_"):
                        assert inspect.getdoc(function), f"{module.__name__}.{name}.{method}"


def test_options_are_those_of_the_readme():
    from riffle._engine import _ENGINE

    table = README[README.index("## Options") : README.index("## Attention for transformers")]
    for option in _ENGINE:
        if option not in ("keeps_beginnings", "pool_tokens"):
            assert f"`{option}`" in table, option
