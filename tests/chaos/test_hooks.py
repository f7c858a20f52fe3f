"""Hooks: commands that break are healed, whatever happens; what is not is named."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.hooks import Hooks
from chaos.own_file import OwnHooks
from migratory.errors import MigratoryError

SPOT = {"member": "m1", "host": "h1"}
OTHER = {"member": "m2", "host": "h2"}
Make = Callable[..., Hooks]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Hooks that break by making a file and heal by removing it, unless told otherwise."""

    def made(**words: Any) -> Hooks:
        kill, start = ("touch", "{member}"), ("rm", "{member}")
        return Hooks(OwnHooks(**{"kill": kill, "start": start, **words}), tmp_path, tmp_path)

    return made


def names(place: Path) -> set[str]:
    """The files that are there."""
    return {path.name for path in place.iterdir()}


def ended(pid: Path) -> bool:
    """Whether the process of this number is gone, or only waits to be collected."""
    stat = Path("/proc", pid.read_text().strip(), "stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


async def test_a_cancelled_fault_is_healed(make: Make, tmp_path: Path) -> None:
    """Whoever wants a run to end gets everything back as it was."""
    hooks = make()
    with trio.move_on_after(0.5):
        async with hooks.breaking("kill", [SPOT, OTHER]):
            assert {"m1", "m2"} <= names(tmp_path)
            assert {"rm m1", "rm m2"} <= set((tmp_path / "heal.sh").read_text().splitlines())
            await trio.sleep_forever()
    assert not {"m1", "m2"} & names(tmp_path)
    assert hooks.broken == {}


async def test_overlapping_faults_heal_with_the_last_one(make: Make, tmp_path: Path) -> None:
    """Two faults may break the same thing; it is broken once and healed once."""
    hooks = make()
    async with hooks.breaking("kill", [SPOT]):
        async with hooks.breaking("kill", [SPOT]):
            pass
        assert (tmp_path / "m1").exists()
    assert not (tmp_path / "m1").exists()
    assert (tmp_path / "hooks.log").read_text() == "$ touch m1\n$ rm m1\n"


async def test_a_hook_that_fails_ends_the_fault_and_heals(make: Make, tmp_path: Path) -> None:
    """Half of it may have happened, so all of it is taken back; the error has its last words."""
    fails = ("sh", "-c", "touch {member}; echo no way; test {member} = m1")
    hooks = make(kill=fails, start=("rm", "-f", "{member}"))  # the other one may be stopped first
    with pytest.RaisesGroup(pytest.RaisesExc(MigratoryError, match=r"m2 ended with 1: no way")):
        async with hooks.breaking("kill", [SPOT, OTHER]):
            pytest.fail("it was not broken")
    assert not {"m1", "m2"} & names(tmp_path)


async def test_a_hook_that_hangs_is_ended(make: Make, tmp_path: Path) -> None:
    """It has its time, and nothing of it goes on afterwards."""
    hooks = make(kill=("sh", "-c", "sleep 600 & echo $! > pid; touch {member}; wait"), timeout=3)
    with pytest.RaisesGroup(pytest.RaisesExc(MigratoryError, match=r"did not end within 3 s")):
        async with hooks.breaking("kill", [SPOT]):
            pytest.fail("it was not broken")
    assert "m1" not in names(tmp_path)
    assert ended(tmp_path / "pid")


async def test_a_hook_may_leave_a_program_running(make: Make, tmp_path: Path) -> None:
    """What a hook starts keeps its output open, which nobody waits for."""
    hooks = make(kill=("sh", "-c", "sleep 600 & echo $! > pid; touch {member}"))
    async with hooks.breaking("kill", [SPOT]):
        assert not ended(tmp_path / "pid")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


async def test_what_cannot_be_healed_is_kept_and_tried_again(make: Make, tmp_path: Path) -> None:
    """Other things are healed nevertheless, and the command stays where a person finds it."""
    hooks = make(start=("sh", "-c", "test ! -e locked-{member} && rm {member}"))
    (tmp_path / "locked-m1").touch()
    with pytest.raises(MigratoryError, match="HOOK_FAILED: hook start m1 ended with 1"):
        async with hooks.breaking("kill", [SPOT, OTHER]):
            pass
    assert not (tmp_path / "m2").exists()
    assert len(await hooks.heal_rest()) == 1
    (tmp_path / "locked-m1").unlink()
    await trio.run_process(["sh", str(tmp_path / "heal.sh")])
    assert not (tmp_path / "m1").exists()


async def test_a_command_that_is_not_there_is_told(make: Make) -> None:
    """A misspelt program is a failed hook."""
    with pytest.raises(MigratoryError, match=r"HOOK_FAILED: .* cannot be started"):
        await make(collect=("no-such-program",)).run("collect", SPOT)
