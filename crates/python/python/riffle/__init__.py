"""Riffle: language models over very long inputs.

- `Engine` runs models: answers, streams, batches, sessions, logits.
- `attend`, `Selection`, `PagedCache` and `Policy` are its kernels, for arrays of numpy, torch and whoever speaks DLPack.
- `riffle.transformers` is its attention for models of the package `transformers`.
- `riffle.evaluation` and `riffle.lm_eval` measure what a policy keeps and loses.

Every long call releases the interpreter's lock and ends at Ctrl-C. Every fault is an exception of `riffle.errors`.
"""

from . import errors
from ._arrays import AuditedQuery, PagedCache, Reference, attend, reference, select, selection
from ._engine import AnswerOptions, Engine, EngineOptions, Session, plan
from ._generation import Generation, Plan, Stream, TokenProbability
from ._policies import Policy, PolicyInfo, SelectContext, policies, register
from ._riffle import Selection, __version__, parse_policy, set_threads, threads
from .errors import RiffleError

__all__ = [
    "AnswerOptions",
    "AuditedQuery",
    "Engine",
    "EngineOptions",
    "Generation",
    "PagedCache",
    "Plan",
    "Policy",
    "PolicyInfo",
    "Reference",
    "RiffleError",
    "SelectContext",
    "Selection",
    "Session",
    "Stream",
    "TokenProbability",
    "__version__",
    "attend",
    "errors",
    "parse_policy",
    "plan",
    "policies",
    "reference",
    "register",
    "select",
    "selection",
    "set_threads",
    "threads",
]
