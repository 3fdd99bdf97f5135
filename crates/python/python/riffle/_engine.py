"""Engines and sessions."""

from __future__ import annotations

import itertools
import json
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, Union

import numpy as np

from . import _riffle
from ._generation import Generation, Plan, Stream
from .errors import OptionError

if TYPE_CHECKING:
    from typing_extensions import Unpack

Prompt = Union[str, Sequence[int]]
"""A text, or its tokens."""

Progress = Callable[[float, int], object]
"""Called regularly with the finished and the total amount of work. An exception from it ends the call."""

Message = Mapping[str, Any]
"""A turn of a conversation: `{"role": "user", "content": "…"}`."""


class EngineOptions(TypedDict, total=False):
    """Options of an engine. Omitted options have the defaults of the `riffle` command."""

    adapter_scales: Sequence[float]
    """Strength of each of `adapters`: 1 as trained, 0 off. `Engine.with_options` can change it."""
    adapters: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    """Adapters (LoRA) for the weights: folders of PEFT or GGUF files, at most eight."""
    activations: str
    """`exact` or `rounded`: precision of the input of linear layers with bf16 weights."""
    attention: str
    """`exact` or `rounded`: precision of prompt attention."""
    audit: bool
    """Compare sampled queries with exact attention: `Session.audit`."""
    auto: float
    """Move each head to the cheapest policy that keeps this share of the exact attention."""
    batch_tokens: int
    """Tokens that pass one layer before the next (`-b`)."""
    chunk_tokens: int
    """Tokens whose attention is computed together (`-ub`)."""
    context: int
    """Maximum tokens of prompt and answer together."""
    decode: str
    """Policy for answers."""
    draft_model: str | os.PathLike[str]
    """A small model with the same tokens, for answers with `draft="model:PATH"`."""
    draft_predictor: bool
    """Load the layer of the model's files that predicts further tokens, for answers with `draft="mtp"`."""
    keeps_beginnings: bool
    """Keep every page of layers with a sliding window, so that whole beginnings can be shared."""
    kv_device: str | int
    """Bytes of the newest KV pages, such as `"4G"`."""
    kv_disk: str | os.PathLike[str]
    """Folder for the oldest KV pages, once `kv_ram` is full."""
    kv_disk_bytes: str | int
    """Bytes of KV pages in that folder."""
    kv_ram: str | int
    """Bytes of KV pages in memory."""
    kv_rotate: bool
    """Rotate heads (Hadamard) in the cache [default: on for planes in q4_0]."""
    kv_type: str
    """`f32`, `f16`, `bf16`, `q8_0` or `q4_0`, or two of them as `KEYS:VALUES`."""
    memory: str | int
    """Maximum memory to use."""
    page_tokens: int
    """Tokens in a page of the KV cache, a multiple of 16."""
    pool_tokens: int
    """Maximum tokens of all sequences together; shared tokens count once."""
    prefill: str
    """Policy for prompts."""
    profile: str | os.PathLike[str]
    """Policies of layers and heads from a file of `riffle calibrate`."""
    rope_scaling: str
    """Extend the model's context: `yarn:factor=4`."""
    score_pairs: bool
    """Score keys and values while reading, so that `Session.compress` need not read again."""
    select_tokens: str
    """Read only this share of the prompt's tokens in the upper layers: `"0.2"`."""
    sequences: int
    """Most sequences at a time: answers of a batch, or forks of a session."""
    sink_tokens: int
    """First tokens that `window` keeps."""
    weights_ram: str | int
    """Most memory for weights; further experts of a mixture stay in the model's file and are read when needed."""
    window: int
    """Keep only the latest tokens and the sinks: endless text in constant memory."""


class AnswerOptions(TypedDict, total=False):
    """Options of an answer. Omitted options have the values that the model's files recommend."""

    draft: str
    """Source of drafts: `none`, `auto`, `ngram`, `sparse:POLICY`, `mtp`, `model:PATH`. The answer is the same to the byte."""
    frequency_penalty: float
    ignore_end: bool
    """Continue after the model's end of a text."""
    logit_bias: Mapping[int, float]
    max_tokens: int
    """Maximum tokens of the answer [default: 256]."""
    min_p: float
    min_tokens: int
    presence_penalty: float
    probabilities: int
    """Return the probability of each token, and of this many likeliest alternatives (engines, not sessions)."""
    repeat_penalty: float
    repeat_window: int
    seed: int
    stop: str | Sequence[str]
    """Texts that end the answer."""
    stop_tokens: Sequence[int]
    temperature: float
    """0 takes the most likely token."""
    top_k: int
    top_p: float


def _written(options: Any) -> dict[str, str]:
    """Names of options, and their types as written."""
    return {name: getattr(kind, "__forward_arg__", kind) for name, kind in options.__annotations__.items()}


_ENGINE = _written(EngineOptions)
_ANSWER = _written(AnswerOptions)
_BYTES = ("kv_device", "kv_disk_bytes", "kv_ram", "memory", "weights_ram")

_LARGEST = 2**64 - 1
"""Largest value of an option or a token."""


def _whole(value: Any) -> int | None:
    """A whole number of Python or numpy that is not a Boolean."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda value: isinstance(value, (bool, np.bool_)), "True or False"),
    "int": (lambda value: _whole(value) is not None, "a whole number, 0 or more"),
    "float": (lambda value: _whole(value) is not None or isinstance(value, (float, np.floating)), "a number"),
    "str": (lambda value: isinstance(value, str), "a text"),
}
"""For each plain type: a check of values, and its name in errors."""


def _check(name: str, value: Any, written: str) -> None:
    """Refuses a value of the wrong plain type; other types are not checked."""
    is_right, kind = _KINDS.get(written, (None, ""))
    if is_right is None:
        return
    if not is_right(value):
        raise TypeError(f"{name} is {value!r}, but it must be {kind}")
    if written == "int" and not 0 <= operator.index(value) <= _LARGEST:
        raise OptionError(f"{name} is {value!r}, but it must be {kind}, and at most {_LARGEST}")


def _given(known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All known options; omitted ones are `None`. `known` has their types as written."""
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"unknown option {name!r}; there are {', '.join(known)}")
        if value is not None:
            _check(name, value, known[name])
    return {name: given.get(name) for name in known}


def _engine_options(given: Mapping[str, Any]) -> dict[str, Any]:
    options = _given(_ENGINE, given)
    for name in _BYTES:
        if options[name] is not None:
            options[name] = str(options[name])
    if isinstance(options["adapters"], (str, os.PathLike)):
        options["adapters"] = [options["adapters"]]
    return options


def _answer_options(given: Mapping[str, Any]) -> dict[str, Any]:
    options = _given(_ANSWER, given)
    if isinstance(options["stop"], str):
        options["stop"] = [options["stop"]]
    return options


def _listed(elements: Iterable[Any], name: str) -> list[Any]:
    """The elements of a sequence, which may be endless."""
    listed = list(itertools.islice(elements, _riffle._MOST_ELEMENTS + 1))
    if len(listed) > _riffle._MOST_ELEMENTS:
        raise OptionError(f"{name} is too long: a sequence has at most {_riffle._MOST_ELEMENTS} elements")
    return listed


def _prompt(prompt: Prompt) -> Prompt:
    """Tokens of any kind as a list."""
    if isinstance(prompt, str):
        return prompt
    tokens = [_whole(token) for token in _listed(prompt, "the prompt")] if isinstance(prompt, Iterable) else [None]
    if None in tokens:
        raise TypeError(f"the prompt is {prompt!r:.80}, but it must be a text, or its tokens as whole numbers")
    wrong = next((token for token in tokens if not 0 <= token < 2**32), None)
    if wrong is not None:
        raise OptionError(f"token {wrong} of the prompt is not one of the model's: tokens are whole numbers from 0 on")
    return tokens


def plan(model: str | os.PathLike[str], **options: Unpack[EngineOptions]) -> Plan:
    """Plans the memory of a run from the files' headers, without loading the model."""
    return Plan(json.loads(_riffle.plan(os.fspath(model), _engine_options(options))))


class Engine:
    """A model in memory.

    `model` is a GGUF file, a folder of safetensors, or a name in the cache of the Hugging Face hub (`owner/name`,
    `owner/name:Q4_K_M`), which `riffle pull` and Python's `huggingface_hub` fill. `threads` gives the engine threads of its
    own; without it all engines and calls on arrays share theirs, one for each core.

    >>> engine = riffle.Engine("fixtures/model", context=2048)
    >>> engine.generate("In the beginning", max_tokens=4).stop_reason
    'max_tokens'
    """

    def __init__(
        self, model: str | os.PathLike[str], *, threads: int | None = None, **options: Unpack[EngineOptions]
    ):
        self._given: dict[str, Any] = dict(options)
        self._native = _riffle.Engine(os.fspath(model), _engine_options(options), threads)

    def with_options(self, **options: Unpack[EngineOptions]) -> Engine:
        """An engine on the same weights with changed options."""
        other = Engine.__new__(Engine)
        other._given = {**self._given, **options}
        other._native = self._native.with_options(_engine_options(other._given))
        return other

    def close(self) -> None:
        """Frees the model. Its sessions can no longer be used, and keep their pages until they are freed."""
        self._native.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._native.is_closed:
            return "Engine(closed)"
        prefill, decode = self._native.policies
        return f"Engine({str(self.path)!r}, context={self.context}, prefill={prefill!r}, decode={decode!r})"

    def __reduce__(self) -> Any:
        return self._native.__reduce__()

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._native.is_closed

    @property
    def path(self) -> str:
        """The file or folder of the model."""
        return str(self._native.path)

    @property
    def context(self) -> int:
        """Maximum tokens of prompt and answer together."""
        return self._native.context

    @property
    def model(self) -> dict[str, Any]:
        """Sizes of the model: layers, heads, vocabulary and others."""
        return json.loads(self._native.model())

    @property
    def plan(self) -> Plan:
        """The memory plan of the engine."""
        return Plan(json.loads(self._native.plan()))

    @property
    def begin_token(self) -> int | None:
        """The token at the beginning of texts."""
        return self._native.end_tokens[0]

    @property
    def end_token(self) -> int | None:
        """The token at the end of texts."""
        return self._native.end_tokens[1]

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """The tokens of a text; `add_special` adds the special tokens at the beginning of the model's texts."""
        return self._native.encode(text, add_special)

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens; `special` includes special tokens."""
        return self._native.decode([int(token) for token in _listed(tokens, "tokens")], special)

    def session(self) -> Session:
        """An empty session."""
        return Session(self._native.session())

    def restore(self, path: str | os.PathLike[str]) -> Session:
        """Restores a session from a file of `Session.save`, which needs the same model and options."""
        return Session(self._native.restore(os.fspath(path)))

    def generate(
        self, prompt: Prompt, *, progress: Progress | None = None, **options: Unpack[AnswerOptions]
    ) -> Generation:
        """Reads a prompt and answers."""
        return self.batch([prompt], progress=progress, **options)[0]

    def batch(
        self, prompts: Iterable[Prompt], *, progress: Progress | None = None, **options: Unpack[AnswerOptions]
    ) -> list[Generation]:
        """Answers several prompts, `sequences` of the engine at a time. A common beginning of prompts is read once."""
        if isinstance(prompts, str):
            raise TypeError("batch takes several prompts: give a list, or use generate for one")
        asked = [_prompt(prompt) for prompt in prompts]
        answers = self._native.batch(asked, _answer_options(options), progress)
        return [Generation._of(answer) for answer in answers]

    def stream(self, prompt: Prompt, *, progress: Progress | None = None, **options: Unpack[AnswerOptions]) -> Stream:
        """Reads a prompt and streams the answer in pieces, for `for` and `async for`."""
        return self.session().stream(prompt, progress=progress, **options)

    def render(self, messages: Iterable[Message], *, add_prompt: bool = True, **variables: Any) -> str:
        """Renders a conversation with the model's chat template; `variables` such as `tools` go to the template."""
        turns = [dict(message) for message in messages]
        return self._native.render(json.dumps(turns), json.dumps(variables), add_prompt)

    def chat(
        self,
        messages: Iterable[Message],
        *,
        session: Session | None = None,
        variables: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Generation:
        """Answers the last turn of a conversation. A session keeps earlier turns: reading starts at the first difference
        between the conversation and the session's text."""
        tokens = self._conversation(messages, variables)
        if session is None:
            return self.generate(tokens, progress=progress, **options)
        return session._answer(tokens, options, progress=progress, replaces=True)

    def chat_stream(
        self,
        messages: Iterable[Message],
        *,
        session: Session | None = None,
        variables: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Stream:
        """As `chat`, streamed in pieces."""
        tokens = self._conversation(messages, variables)
        session = self.session() if session is None else session
        return session._stream(tokens, options, progress=progress, replaces=True)

    def _conversation(self, messages: Iterable[Message], variables: Mapping[str, Any] | None) -> list[int]:
        turns = [dict(message) for message in messages]
        return list(self._native.conversation_tokens(json.dumps(turns), json.dumps(dict(variables or {}))))

    def logits(self, prompt: Prompt, *, first: int = 0, progress: Progress | None = None) -> np.ndarray:
        """Logits `[tokens, vocabulary]` after the prompt's tokens from index `first` on."""
        return self.session().prefill_logits(prompt, first=first, progress=progress)

    def log_probabilities(self, prompt: Prompt, *, progress: Progress | None = None) -> np.ndarray:
        """Natural logarithms of the probabilities of the prompt's tokens from the second on, each given those before it."""
        tokens = self.encode(prompt) if isinstance(prompt, str) else prompt
        return self.session().log_probabilities(tokens, first=1, progress=progress)[0]


class Session:
    """One text with its pages, policies and current answer. Only one call at a time may use it."""

    def __init__(self, native: _riffle.Session):
        if not isinstance(native, _riffle.Session):
            raise TypeError("sessions come from Engine.session(), Engine.restore() and Session.fork()")
        self._native = native

    def close(self) -> None:
        """Frees its pages."""
        self._native.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return self._native.__reduce__()

    def __len__(self) -> int:
        return len(self._native)

    def __bool__(self) -> bool:
        return not self._native.is_closed

    def __repr__(self) -> str:
        return "Session(closed)" if self._native.is_closed else f"Session({len(self)} tokens)"

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._native.is_closed

    @property
    def tokens(self) -> list[int]:
        """Tokens read and written so far."""
        return self._native.tokens

    @property
    def density(self) -> float:
        """Share of the causal pairs of query and key that attention read."""
        return self._native.density

    @property
    def usage(self) -> dict[str, int]:
        """Tokens, pages and bytes by tier."""
        return json.loads(self._native.usage())

    @property
    def audit(self) -> dict[str, Any] | None:
        """Shares of exact attention that the policies kept, if the engine has `audit=True`."""
        report = self._native.audit()
        return None if report is None else json.loads(report)

    @property
    def logits(self) -> np.ndarray:
        """Logits `[vocabulary]` after the last token."""
        return self._native.logits()

    def prefill(self, prompt: Prompt, *, progress: Progress | None = None) -> int:
        """Appends a prompt to the session's text and reads it. Returns its tokens."""
        return self._native.prefill(_prompt(prompt), progress)

    def prefill_logits(self, prompt: Prompt, *, first: int = 0, progress: Progress | None = None) -> np.ndarray:
        """Reads a prompt and returns logits `[tokens, vocabulary]` after its tokens from index `first` on."""
        return self._native.prefill_logits(_prompt(prompt), _count("first", first), progress)

    def log_probabilities(
        self, tokens: Sequence[int], *, first: int = 1, progress: Progress | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Natural logarithms of the probabilities of `tokens[first:]`, each given all tokens before it, and whether each was the
        likeliest. The session then holds `tokens`; what it shares with them is not read again."""
        listed = [int(token) for token in _listed(tokens, "tokens")]
        return self._native.log_probabilities(listed, _count("first", first), progress)

    def generate(
        self, prompt: Prompt | None = None, *, progress: Progress | None = None, **options: Unpack[AnswerOptions]
    ) -> Generation:
        """Reads a prompt and answers. Without a prompt it continues the current answer."""
        return self._answer(prompt, options, progress=progress, replaces=False)

    def stream(
        self, prompt: Prompt | None = None, *, progress: Progress | None = None, **options: Unpack[AnswerOptions]
    ) -> Stream:
        """As `generate`, streamed in pieces. The session is in use until the stream ends."""
        return self._stream(prompt, options, progress=progress, replaces=False)

    def advance(self, token: int) -> None:
        """Reads one token as a generated one. `logits` are then the logits after it."""
        self._native.advance(_count("token", token))

    def truncate(self, tokens: int) -> None:
        """Forgets everything after the first `tokens` tokens."""
        self._native.truncate(_count("tokens", tokens))

    def fork(self) -> Session:
        """A copy of the session. Both share their pages until one of them writes."""
        return Session(self._native.fork())

    def save(self, path: str | os.PathLike[str]) -> int:
        """Saves the session to a file atomically. Returns the file's bytes."""
        return self._native.save(os.fspath(path))

    def compress(
        self, keep: float, *, method: str = "echo", progress: Progress | None = None
    ) -> dict[str, int]:
        """Keeps the share `keep` of keys and values, and evicts those that later questions need least. `method` is `echo`,
        `kvzip` or `expected`. With `score_pairs`, `echo` reads nothing again."""
        return json.loads(self._native.compress(f"{method}:{keep}", progress))

    def _answer(
        self, prompt: Prompt | None, options: Mapping[str, Any], *, progress: Progress | None, replaces: bool
    ) -> Generation:
        prompt = None if prompt is None else _prompt(prompt)
        return Generation._of(self._native.generate(prompt, _answer_options(options), replaces, progress))

    def _stream(
        self, prompt: Prompt | None, options: Mapping[str, Any], *, progress: Progress | None, replaces: bool
    ) -> Stream:
        prompt = None if prompt is None else _prompt(prompt)
        return Stream(self._native.stream(prompt, _answer_options(options), replaces, progress))


def _count(name: str, value: int) -> int:
    _check(name, value, "int")
    return operator.index(value)
