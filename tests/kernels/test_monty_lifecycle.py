"""The pool: starting, queueing, losing workers, cancelling, stopping, and the end of the process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from gateway.errors import ErrorClass, GatewayError
from gateway.kernels import monty
from gateway.kernels.monty import MontyKernel
from tests.kernels.conftest import Hang, Lab, Start
from tests.kernels.workers import worker_pids


async def test_before_start_and_after_stop_it_answers_that_it_is_not_running() -> None:
    lab = Lab(MontyKernel(1, 1.0))
    assert (await lab.error("1")).error_class == ErrorClass.KERNEL_UNAVAILABLE
    await lab.kernel.start()
    await lab.kernel.start()
    assert await lab.value("1") == 1
    await lab.kernel.stop()
    await lab.kernel.stop()
    assert (await lab.error("1")).error_class == ErrorClass.KERNEL_UNAVAILABLE
    assert worker_pids() == []


@pytest.mark.case("KERNELS-16")
@pytest.mark.parametrize("program", [None, "/bin/true", "/no/such/program"])
async def test_a_worker_program_that_does_not_work_is_said_at_start(
    program: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monty, "_binary", lambda: program)
    kernel = MontyKernel(1, 1.0)
    with pytest.raises(GatewayError) as failure:
        await kernel.start()
    assert failure.value.error_class == ErrorClass.KERNEL_UNAVAILABLE
    assert "/" not in failure.value.message
    await kernel.stop()


async def test_an_execution_that_finds_no_worker_is_told_to_try_again(start: Start) -> None:
    lab = await start(workers=1, queue_timeout_s=0.1)
    hang = lab.functions["up__hang"] = Hang()
    first = asyncio.create_task(lab.run("await up__hang()"))
    await hang.called.wait()
    assert (lab.kernel.stats().idle, lab.kernel.stats().busy) == (0, 1)
    second = asyncio.create_task(lab.error("1"))
    await asyncio.sleep(0)
    assert lab.kernel.stats().waiting == 1
    error = await second
    assert error.error_class == ErrorClass.KERNEL_UNAVAILABLE
    assert error.hint == "try again in a few seconds"
    first.cancel()
    await asyncio.wait({first})
    assert await lab.value("1") == 1
    assert (lab.kernel.stats().idle, lab.kernel.stats().busy, lab.kernel.stats().waiting) == (1, 0, 0)


@pytest.mark.case("KERNELS-09")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
async def test_a_worker_that_dies_fails_only_its_own_run(start: Start, number: signal.Signals) -> None:
    lab = await start(workers=1)
    hang = lab.functions["up__hang"] = Hang()
    run = asyncio.create_task(lab.error("up__hang()\nwhile True: pass"))
    await hang.called.wait()
    for pid in worker_pids():
        os.kill(pid, number)
    assert (await run).error_class == ErrorClass.KERNEL_CRASHED
    assert (hang.cancelled, hang.running) == (1, 0)
    assert await lab.value("1") == 1


@pytest.mark.case("KERNELS-09")
async def test_workers_that_die_while_idle_are_not_noticed_by_anybody(start: Start) -> None:
    lab = await start(workers=2)
    for pid in worker_pids():
        os.kill(pid, signal.SIGKILL)
    assert [await lab.value("1") for _ in range(4)] == [1, 1, 1, 1]


@pytest.mark.case("KERNELS-13")
@pytest.mark.parametrize(
    "code", ["up__hang()\nwhile True: pass", "await up__hang()", "up__hang()\nx = 3\nwhile 1: x *= x"]
)
async def test_cancelling_a_run_ends_the_script_and_its_calls(start: Start, code: str) -> None:
    lab = await start(workers=1)
    loop = asyncio.get_running_loop()
    for _ in range(3):
        hang = lab.functions["up__hang"] = Hang()
        run = asyncio.create_task(lab.run(code))
        await hang.called.wait()
        begun = loop.time()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert loop.time() - begun < 1
        assert (hang.cancelled, hang.running) == (1, 0)
        assert lab.kernel.stats().busy == 0
    assert await lab.value("1") == 1


async def test_cancelling_a_run_that_waits_in_the_queue_gives_its_place_back(start: Start) -> None:
    lab = await start(workers=1)
    hang = lab.functions["up__hang"] = Hang()
    first = asyncio.create_task(lab.run("await up__hang()"))
    await hang.called.wait()
    second = asyncio.create_task(lab.run("2"))
    await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    await asyncio.wait({first, second})
    assert lab.kernel.stats().waiting == 0
    assert await lab.value("3") == 3


@pytest.mark.case("KERNELS-13")
async def test_stopping_ends_busy_runs_and_leaves_no_process(start: Start) -> None:
    lab = await start(workers=4)
    hangs = [Hang() for _ in range(4)]
    for number, hang in enumerate(hangs):
        lab.functions[f"up__hang{number}"] = hang
    runs = [asyncio.create_task(lab.error(f"up__hang{n}()\nwhile True: pass", cpu_ms=60_000)) for n in range(4)]
    for hang in hangs:
        await hang.called.wait()
    begun = asyncio.get_running_loop().time()
    await lab.kernel.stop()
    assert asyncio.get_running_loop().time() - begun < 2
    assert {(await run).error_class for run in runs} == {ErrorClass.CANCELLED}
    assert worker_pids() == []


@pytest.mark.case("KERNELS-11")
def test_the_process_ends_well_after_it_used_the_kernel() -> None:
    script = textwrap.dedent("""
        import asyncio
        from gateway.config.model import Manifest
        from gateway.kernels.base import ExecRequest, Functions
        from gateway.kernels.monty import MontyKernel

        async def call(args, kwargs):
            return list(args)

        async def main():
            kernel = MontyKernel(workers=2, queue_timeout_s=5)
            await kernel.start()
            deadline = asyncio.get_running_loop().time() + 10
            functions = Functions({"call": call}.get)
            result = await kernel.run(ExecRequest("id", "acme", "await call(1)", Manifest(), deadline, functions))
            assert result.error is None
            await kernel.stop()

        asyncio.run(main())
    """)
    command = [sys.executable, "-W", "error", "-c", script]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(5)]
    for process in processes:
        _, stderr = process.communicate(timeout=30)
        assert (process.returncode, stderr) == (0, b"")
