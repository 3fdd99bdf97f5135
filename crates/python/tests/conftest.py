"""Fixtures of all tests: the shipped models and texts, and tiny random models of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

import riffle

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "fixtures/model"
HYBRID = ROOT / "fixtures/model-hybrid"
TEXT = ROOT / "fixtures/text/prophets.txt"


@pytest.fixture(scope="session")
def text() -> str:
    return TEXT.read_text()


@pytest.fixture(scope="session")
def engine() -> riffle.Engine:
    return riffle.Engine(MODEL, context=4096, kv_type="f32")
