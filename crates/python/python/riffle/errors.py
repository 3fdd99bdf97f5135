"""Exceptions: one class for each kind of fault, all of them a `RiffleError`.

Messages are those of the `riffle` command. They name options by the keyword arguments of this package.
"""

__all__ = [
    "ArrayError",
    "CacheError",
    "ClosedError",
    "ContextExceededError",
    "InternalError",
    "InterruptedError",
    "ModelError",
    "OptionError",
    "OutOfMemoryError",
    "PolicyError",
    "ProcessError",
    "RiffleError",
    "SessionError",
    "UnsupportedError",
]


class RiffleError(Exception):
    """Any fault that Riffle tells."""


class OptionError(RiffleError, ValueError):
    """An argument has a value that makes no sense."""


class PolicyError(OptionError):
    """A policy is unknown, badly spelled, or does not select in the phase it was chosen for."""


class ContextExceededError(OptionError):
    """A text does not fit the context."""


class ArrayError(RiffleError, ValueError):
    """An array has a wrong shape, type or place."""


class ModelError(RiffleError, ValueError):
    """A model cannot be found, loaded or run."""


class OutOfMemoryError(RiffleError, MemoryError):
    """A plan or a request does not fit memory. Nothing large was allocated."""


class CacheError(RiffleError, OSError):
    """Pages could not be stored, loaded or restored."""


class SessionError(RiffleError, RuntimeError):
    """A session is in use, or cannot do what was asked."""


class ClosedError(RiffleError, RuntimeError):
    """An engine, a session or a cache was closed before."""


class ProcessError(RiffleError, RuntimeError):
    """Something made before `os.fork()` was used in the child."""


class InterruptedError(RiffleError):
    """Work was stopped before its end."""


class UnsupportedError(RiffleError, NotImplementedError):
    """A model or a call of transformers that Riffle's attention cannot honour."""


class InternalError(RiffleError):
    """A fault in Riffle itself."""
