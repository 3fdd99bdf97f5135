"""Sessions and streams."""

from __future__ import annotations

import asyncio
import gc
import time

import numpy as np
import pytest
from conftest import MODEL

import riffle
from riffle import errors


def test_a_session_is_saved_restored_and_forked(engine, text, tmp_path):
    session = engine.session()
    assert session.prefill(text[:2000]) == len(session)
    expected = engine.session()
    expected.prefill(text[:2000])
    expected = expected.generate(max_tokens=12).tokens

    path = tmp_path / "book.session"
    assert session.save(path) == path.stat().st_size
    fork = session.fork()
    assert fork.generate(max_tokens=12).tokens == expected
    assert len(session) < len(fork)
    restored = engine.restore(path)
    assert restored.tokens == session.tokens
    np.testing.assert_array_equal(restored.logits, session.logits)
    assert restored.generate(max_tokens=12).tokens == expected
    other = riffle.Engine(MODEL, context=4096, kv_type="q8_0")
    with pytest.raises(errors.SessionError, match="kv_type"):
        other.restore(path)
    (tmp_path / "cut").write_bytes(path.read_bytes()[:1000])
    with pytest.raises(errors.RiffleError):
        engine.restore(tmp_path / "cut")


def test_an_answer_goes_on_and_goes_back(engine, text):
    whole = engine.session()
    whole.prefill(text[:1200])
    whole = whole.generate(max_tokens=20, ignore_end=True)
    session = engine.session()
    session.prefill(text[:1200])
    first = session.generate(max_tokens=8, ignore_end=True)
    second = session.generate(max_tokens=12, ignore_end=True)
    assert first.tokens + second.tokens == whole.tokens
    length = whole.prompt_tokens
    session.truncate(length)
    assert len(session) == length
    session.advance(whole.tokens[0])
    assert int(np.argmax(session.logits)) == whole.tokens[1]


def test_a_compressed_session_answers_with_fewer_bytes(text):
    engine = riffle.Engine(MODEL, context=8192, sequences=2)
    session = engine.session()
    session.prefill(f"The pass key for amber falcon is 73194. {text[:6000]}")
    before = session.usage["ram_bytes"]
    report = session.compress(0.3)
    assert report["pairs"] < 0.4 * report["pairs_before"]
    assert session.usage["ram_bytes"] < before
    with pytest.raises(errors.OptionError, match="`compress`"):
        session.compress(1.5)
    with pytest.raises(errors.OptionError, match="`compress`"):
        session.compress(0.5, method="magic")


def test_a_session_tells_what_it_holds(text):
    engine = riffle.Engine(MODEL, context=4096, prefill="streaming:sinks=16,window=64,from=0", audit=True)
    session = engine.session()
    with pytest.raises(errors.SessionError, match="read nothing"):
        session.logits
    session.prefill(text[:3000])
    assert 0 < session.density < 0.5
    assert session.usage["tokens"] == len(session)
    assert 0 < session.audit["mean_mass"] < 1
    assert engine.with_options(audit=False).session().audit is None


def test_log_probabilities_share_what_was_read(engine, text):
    tokens = engine.encode(text)[:400]
    session = engine.session()
    found, likeliest = session.log_probabilities(tokens, first=350)
    whole, all_likeliest = engine.session().log_probabilities(tokens)
    np.testing.assert_allclose(found, whole[349:], atol=1e-5)
    assert (likeliest == all_likeliest[349:]).all()
    other = tokens[:350] + tokens[10:40]
    found, _ = session.log_probabilities(other, first=350)
    expected, _ = engine.session().log_probabilities(other, first=350)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    for first in (0, len(tokens)):
        with pytest.raises(errors.OptionError, match="first is"):
            session.log_probabilities(tokens, first=first)
    with pytest.raises(errors.OptionError, match="0 or more"):
        session.log_probabilities(tokens, first=-3)


def test_a_stream_writes_what_generate_writes(engine, text):
    expected = engine.generate(text[:900], max_tokens=24, ignore_end=True)
    stream = engine.stream(text[:900], max_tokens=24, ignore_end=True)
    assert stream.generation is None
    pieces = list(stream)
    assert "".join(pieces) == expected.text and len(pieces) > 1
    assert stream.generation.tokens == expected.tokens
    assert list(stream) == []
    assert engine.stream(text[:900], max_tokens=3).read().tokens == expected.tokens[:3]


def test_streams_are_asynchronous(engine, text):
    async def read(prompt: str) -> str:
        pieces = []
        async for piece in engine.stream(prompt, max_tokens=12, ignore_end=True):
            pieces.append(piece)
            await asyncio.sleep(0)
        return "".join(pieces)

    async def both() -> list[str]:
        return await asyncio.gather(read(text[:300]), read(text[500:900]))

    found = asyncio.run(both())
    assert found == [engine.generate(p, max_tokens=12, ignore_end=True).text for p in (text[:300], text[500:900])]


def test_leaving_a_stream_stops_its_answer(engine, text):
    session = engine.session()
    with session.stream(text[:300], max_tokens=3000, ignore_end=True) as stream:
        next(stream)
        with pytest.raises(errors.SessionError, match="in use"):
            session.tokens
    del stream
    gc.collect()
    deadline = time.monotonic() + 20
    while True:
        try:
            held = len(session)
            break
        except errors.SessionError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert held < 2000


def test_a_stream_raises_what_went_wrong(engine):
    stream = engine.stream([7] * 5000, max_tokens=5)
    with pytest.raises(errors.ContextExceededError):
        list(stream)


def test_a_conversation_keeps_what_was_read(tmp_path):
    import json
    import shutil

    folder = tmp_path / "chat"
    shutil.copytree(MODEL, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}{% if tone %}[{{ tone }}]{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    engine = riffle.Engine(folder, context=1024)
    messages = [{"role": "user", "content": "What is the beginning?"}]
    assert engine.render(messages, tone="calm").endswith("assistant:[calm]")
    session = engine.session()
    first = engine.chat(messages, session=session, max_tokens=8)
    assert first.tokens == engine.chat(messages, max_tokens=8).tokens
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And then?"}]
    second = engine.chat(messages, session=session, max_tokens=8)
    assert second.reused_tokens > 0 and second.tokens == engine.chat(messages, max_tokens=8).tokens
    assert engine.chat_stream(messages, session=session, max_tokens=8).read().tokens == second.tokens
    with pytest.raises(errors.OptionError, match="probabilities"):
        engine.chat(messages, session=session, probabilities=1)


def test_a_closed_session_says_so(engine):
    with engine.session() as session:
        session.prefill("And")
    assert session.is_closed and repr(session) == "Session(closed)"
    with pytest.raises(errors.ClosedError, match="session is closed"):
        session.generate(max_tokens=1)
    with pytest.raises(TypeError):
        riffle.Session(3)
