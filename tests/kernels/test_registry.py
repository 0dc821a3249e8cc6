"""Engines by name."""

from __future__ import annotations

import asyncio
import sys
import types

import pytest

from gateway.config.model import Kernel as KernelConfig
from gateway.config.model import Manifest
from gateway.errors import ErrorClass, GatewayError
from gateway.kernels import registry
from gateway.kernels.base import ExecRequest, Functions, Kernel

CONFIG = KernelConfig(engine="monty", workers=3)


def test_a_kernel_is_built_by_the_name_of_its_engine() -> None:
    kernel: Kernel = registry.build("monty", CONFIG)
    assert (kernel.engine, kernel.language) == ("monty", "python")
    assert kernel.stats().idle == 3


def test_an_unknown_engine_is_refused_with_the_names_of_the_known() -> None:
    with pytest.raises(ValueError, match=r"unknown kernel engine 'montey'; known: .*monty"):
        registry.build("montey", CONFIG)


def test_every_manifest_field_has_its_enforcement() -> None:
    fields = {field.alias for field in Manifest.model_fields.values()}
    for report in registry.describe():
        if report.available:
            assert set(report.enforcement) == fields


def test_describe_tells_what_works_here() -> None:
    report = next(report for report in registry.describe() if report.engine == "monty")
    assert report.available
    assert report.reason == ""
    assert "process" in report.isolation
    assert report.enforcement["allowedHosts"] == "refused"


def test_the_manifest_is_checked_against_the_engine() -> None:
    assert registry.check_manifest("monty", Manifest()) == []
    assert len(registry.check_manifest("monty", Manifest(allowed_hosts=("a.test",)))) == 1


@pytest.mark.case("KERNELS-16")
@pytest.mark.parametrize("installed", [None, types.ModuleType("pydantic_monty")], ids=["missing", "other version"])
async def test_an_engine_that_is_missing_or_does_not_fit_answers_with_the_reason(
    installed: types.ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith(("gateway.kernels.monty", "pydantic_monty."))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pydantic_monty", installed)
    (report,) = [report for report in registry.describe() if report.engine == "monty"]
    assert not report.available
    assert report.reason.startswith("the monty engine needs pydantic-monty >=1.4,<1.5: ")
    assert registry.check_manifest("monty", Manifest()) == [report.reason]
    kernel: Kernel = registry.build("monty", CONFIG)
    with pytest.raises(GatewayError) as failure:
        await kernel.start()
    assert failure.value.error_class == ErrorClass.KERNEL_UNAVAILABLE
    deadline = asyncio.get_running_loop().time() + 1
    request = ExecRequest("id", "acme", "1", Manifest(), deadline, Functions(lambda _: None))
    error = (await kernel.run(request)).error
    assert error
    assert (error.error_class, error.message) == (ErrorClass.KERNEL_UNAVAILABLE, report.reason)
    await kernel.stop()
