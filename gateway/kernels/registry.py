"""Which engines exist: the name in ``gateway.yaml`` → the kernel. A new engine is one file and one line here.

An engine is imported when it is first asked for, so that one that is not installed, or of a wrong version, disturbs
only the tenants that use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal, Protocol, cast

from gateway.config.model import Kernel as KernelConfig
from gateway.config.model import Manifest
from gateway.errors import ErrorClass, GatewayError
from gateway.kernels.base import Enforcement, ExecError, ExecRequest, ExecResult, Kernel, KernelStats

Language = Literal["python", "javascript"]


class KernelClass(Protocol):
    """What the class of an engine offers before there is a pool."""

    isolation: str
    enforcement: Mapping[str, Enforcement]

    def __call__(self, workers: int, queue_timeout_s: float) -> Kernel: ...

    def check_manifest(self, manifest: Manifest) -> list[str]:
        """What the engine could not enforce or provide, one sentence each."""
        ...

    def unavailable_reason(self) -> str | None:
        """Why the engine cannot work on this host, or None."""
        ...


@dataclass(frozen=True, slots=True)
class EngineFactory:
    """Where the class of an engine is, and the language that it runs."""

    module: str
    class_name: str
    language: Language

    def load(self) -> KernelClass:
        """Raises ImportError, with the reason, when the engine is not installed or does not fit."""
        return cast("KernelClass", getattr(import_module(self.module), self.class_name))


ENGINES: dict[str, EngineFactory] = {
    "monty": EngineFactory("gateway.kernels.monty", "MontyKernel", "python"),
}


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One line of ``gateway doctor``: ``reason`` says why the engine is not available."""

    engine: str
    language: Language
    available: bool
    reason: str = ""
    isolation: str = ""
    enforcement: Mapping[str, Enforcement] = field(default_factory=dict)


def build(engine: str, config: KernelConfig) -> Kernel:
    """The kernel of an engine, not started. One whose engine cannot be loaded is built too, and refuses to run.

    Raises:
        ValueError: there is no engine of that name; the text lists those there are.
    """
    factory = _factory(engine)
    try:
        kernel_class = factory.load()
    except ImportError as error:
        return UnavailableKernel(engine, factory.language, str(error))
    return kernel_class(workers=config.workers, queue_timeout_s=config.queue_timeout)


def check_manifest(engine: str, manifest: Manifest) -> list[str]:
    """What the engine could not enforce or provide of a manifest, one sentence each.

    Raises:
        ValueError: there is no engine of that name.
    """
    try:
        return _factory(engine).load().check_manifest(manifest)
    except ImportError as error:
        return [str(error)]


def describe() -> list[EngineReport]:
    """Every known engine, and whether it can work on this host."""
    return [_report(name, factory) for name, factory in ENGINES.items()]


class UnavailableKernel:
    """Stands in for a kernel whose engine is not there: it does not start, and answers with the reason."""

    isolation: str = ""
    enforcement: Mapping[str, Enforcement] = {}

    def __init__(self, engine: str, language: Language, reason: str) -> None:
        self.engine = engine
        self.language: Language = language
        self._reason = reason

    async def start(self) -> None:
        raise GatewayError(ErrorClass.KERNEL_UNAVAILABLE, self._reason)

    async def run(self, request: ExecRequest) -> ExecResult:
        return ExecResult(ok=False, error=ExecError(ErrorClass.KERNEL_UNAVAILABLE, self._reason))

    async def stop(self) -> None:
        """Nothing was started."""

    def stats(self) -> KernelStats:
        return KernelStats(idle=0, busy=0, waiting=0)


def _factory(engine: str) -> EngineFactory:
    if engine not in ENGINES:
        raise ValueError(f"unknown kernel engine {engine!r}; known: {', '.join(sorted(ENGINES))}")
    return ENGINES[engine]


def _report(name: str, factory: EngineFactory) -> EngineReport:
    try:
        kernel_class = factory.load()
    except ImportError as error:
        return EngineReport(name, factory.language, available=False, reason=str(error))
    reason = kernel_class.unavailable_reason()
    return EngineReport(
        engine=name,
        language=factory.language,
        available=reason is None,
        reason=reason or "",
        isolation=kernel_class.isolation,
        enforcement=kernel_class.enforcement,
    )
