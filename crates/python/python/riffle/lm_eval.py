"""A model of `lm-eval` (the LM Evaluation Harness) that runs in Riffle, with exact log likelihoods.

    lm_eval --model riffle --model_args model=owner/name,kv_type=q8_0,prefill=xattention --tasks lambada_openai

needs this module to be imported: `python -m riffle.lm_eval …` takes the same arguments as `lm_eval` and does so.
"""

from __future__ import annotations

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from ._engine import Engine
from .errors import OptionError

__all__ = ["RiffleLM"]

_WHOLE_NUMBERS = {"context", "batch_tokens", "chunk_tokens", "page_tokens", "sequences", "pool_tokens", "threads"}


@register_model("riffle")
class RiffleLM(TemplateLM):
    """Answers and log likelihoods of an engine. `model_args` are the options of `riffle.Engine`."""

    def __init__(
        self,
        model: str | Engine,
        max_gen_toks: int = 256,
        batch_size: Any = 1,
        max_batch_size: Any = None,
        device: str | None = None,
        **options: Any,
    ):
        super().__init__()
        if device not in (None, "cpu"):
            raise OptionError(f"device is {device!r}, but riffle.lm_eval computes on the CPU: leave it out")
        numbers = {name: int(value) for name, value in options.items() if name in _WHOLE_NUMBERS}
        self.engine = model if isinstance(model, Engine) else Engine(model, **{**options, **numbers})
        self._max_gen_toks = int(max_gen_toks)
        # A request reuses the pages of an earlier one that begins alike.
        self._session = self.engine.session()

    @property
    def eot_token_id(self) -> int | None:
        return self.engine.end_token

    @property
    def prefix_token_id(self) -> int | None:
        begin = self.engine.begin_token
        return self.engine.end_token if begin is None else begin

    @property
    def max_length(self) -> int:
        return self.engine.context

    @property
    def max_gen_toks(self) -> int:
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        return self.engine.path

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return self.engine.encode(string, add_special=bool(add_special_tokens))

    def tok_decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return self.engine.decode(tokens, special=not skip_special_tokens)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.engine.render(chat_history, add_prompt=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return ""

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Sums of the log likelihoods of continuations, and whether each is the one that greedy sampling writes."""
        found: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        # Sorted, so that prompts that begin alike follow one another.
        order = sorted(range(len(requests)), key=lambda at: (requests[at][1], requests[at][2]))
        for at in order:
            key, context, continuation = requests[at]
            if not context:
                raise OptionError("a continuation needs a token before it: give a context, or a model with a beginning token")
            # As lm-eval's own models: what is too long loses its beginning.
            tokens = (context + continuation)[-self.max_length :]
            first = len(tokens) - len(continuation)
            if first < 1:
                raise OptionError(f"a continuation of {len(continuation)} tokens does not fit a context of {self.max_length}")
            values, likeliest = self._session.log_probabilities(tokens, first=first)
            found[at] = (float(values.astype("float64").sum()), bool(likeliest.all()))
            self.cache_hook.add_partial("loglikelihood", key, found[at])
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log likelihoods of whole texts, in windows of the context's length."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        totals: list[float] = []
        for request in requests:
            (string,) = request.args
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(string),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            pairs = [make_disjoint_window(window) for window in windows]
            parts = [(("", ""), list(context), list(continuation)) for context, continuation in pairs]
            total = sum(value for value, _ in self._loglikelihood_tokens(parts))
            totals.append(total)
            self.cache_hook.add_partial("loglikelihood_rolling", (string,), total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers that end at given texts."""
        answers = []
        for request in requests:
            prompt, given = request.args
            options = dict(given)
            until = options.pop("until", None) or []
            most = int(options.pop("max_gen_toks", self._max_gen_toks))
            sample = bool(options.pop("do_sample", False))
            temperature = float(options.pop("temperature", 0.0)) if sample else 0.0
            tokens = self.tok_encode(prompt, add_special_tokens=True)[-(self.max_length - most) :]
            answer = self.engine.generate(
                tokens,
                max_tokens=most,
                stop=[until] if isinstance(until, str) else list(until),
                temperature=temperature,
                top_p=float(options.get("top_p", 1.0)),
            ).text
            answers.append(answer)
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    # Registered under this name by the import above; run as a program the class lives in __main__.
    cli_evaluate()
