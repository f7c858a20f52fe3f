"""The file of a cluster that others started: what it may say, and what follows from it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from chaos.__main__ import main
from chaos.cluster import CLIENTS
from chaos.faults_of_network import Hold
from chaos.nemesis import Nemesis
from chaos.own_cluster import WAYS, possible_kinds
from chaos.own_file import HOOKS, OwnFile, OwnHooks
from chaos.own_traces import check_fullness
from chaos.plan import Fault, make_plan
from chaos.scenarios import SCENARIOS
from chaos.stages import OthersMaking
from chaos.trace import notes
from migratory.errors import ConfigError, MigratoryError
from migratory.wire.trace import decode_rows
from tests.chaos.guide import GUIDE, block, cluster_of, described

NAME = re.compile("`([a-z_-]+)`")

# ---- files --------------------------------------------------------------------------------------


def test_the_hooks_for_other_machines_are_valid(tmp_path: Path) -> None:
    """The guide's second example fits the first one's members, and all its faults are possible."""
    own = block("`own.toml`").partition("[hooks]")[0].replace('directory = "traces"\n', "")
    file = described(tmp_path, own + block("route that leads nowhere"))
    assert possible_kinds(file) >= {"kill-long", "pause", "rolling-restart", "cut-zookeeper"}
    assert "cut-clients" not in possible_kinds(file)


def test_every_hook_of_a_file_is_known_by_its_kind() -> None:
    """Hooks in the file, their places and the faults that use them name the same things."""
    fields = {field.name for field in msgspec.structs.fields(OwnHooks)} - {"timeout"}
    assert fields == set(HOOKS)
    breaking = {name for name, hook in HOOKS.items() if hook.healed_by}
    assert {way.hook for way in WAYS.values()} == breaking
    assert {hook.healed_by for hook in HOOKS.values()} - {""} == fields - breaking - {"collect"}


def test_the_guide_has_every_key_and_hook() -> None:
    """Whoever writes a file finds in the guide all that it may say, and what follows from it."""
    text = GUIDE.read_text()
    tables = text[text.index("### The file") : text.index("### Three machines")]
    told = [[set(NAME.findall(cell)) for cell in row.split("|")] for row in tables.splitlines()]
    rows = [cells for cells in told if len(cells) == 5 and cells[1]]
    assert set().union(*(hooks for _, hooks, _, _, _ in rows)) >= set(HOOKS)
    assert set().union(*(kinds for _, _, _, kinds, _ in rows)) >= set(WAYS)
    for section in msgspec.structs.fields(OwnFile):
        for field in msgspec.structs.fields(section.type):
            assert field.encode_name in HOOKS or f"`{section.name}.{field.encode_name}" in tables


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    """Each with its key, what is wrong and what to do."""
    text = """
        [cluster]
        faults = 2
        groups = 1000
        [[cluster.member]]
        id = "M 1"
        client = "10.0.0.1"
        [history]
        max_messages = 3
        [trace]
        directory = "traces"
        [hooks]
        kill = "reboot"
        pause = ["stop", "them all"]
        cut = ["cut", "{from}"]
        heal = ["heal", "{from}", "{to}", "{what}"]
        collect = ["fetch", "{member}"]
    """
    with pytest.raises(ConfigError) as caught:
        described(tmp_path, text)
    told = {fault.key: str(fault) for fault in caught.value.faults}
    assert sorted(told) == [
        "cluster.faults", "cluster.groups", "cluster.member[1].admin", "cluster.member[1].client",
        "cluster.member[1].id", "history", "hooks.collect", "hooks.cut", "hooks.heal",
        "hooks.kill", "hooks.pause", "trace.directory", "trace.run",
    ]  # fmt: skip
    assert '["sh", "-c", "..."]' in told["hooks.kill"]
    assert "nothing is known as {what}" in told["hooks.heal"]
    assert main(["run", "--cluster", str(tmp_path / "own.toml"), "--out", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("change", "words", "code"),
    [
        (("", ""), ["--scenario", "p9"], "NOT_POSSIBLE"),
        (("", ""), ["--scenario", "five-members-two-faults"], "CLUSTER_TOO_SMALL"),
        (("[cluster]", "cluster"), [], "CONFIG_INVALID"),
    ],
)
def test_what_a_file_cannot_do_is_named(
    change: tuple[str, str], words: list[str], code: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A run that cannot be carried out ends before anything is asked or made."""
    own = tmp_path / "own.toml"
    own.write_text(block("`own.toml`").replace(*change, 1))
    out = tmp_path / "out"
    assert main(["run", "--cluster", str(own), "--out", str(out), *words]) in (1, 2)
    assert f"chaos: {code}: " in capsys.readouterr().err
    assert not out.exists()


# ---- plans --------------------------------------------------------------------------------------


def test_a_plan_is_cast_with_the_members_of_the_file(tmp_path: Path) -> None:
    """m1 of a plan is the first member in the file, so that it can be replayed on any cluster."""
    ids = {"m1": "m3", "m2": "b", "m3": "c"}
    text = re.sub(r'(?<=id = ")m\d', lambda found: ids[found[0]], block("`own.toml`"))
    (tmp_path / "own.toml").write_text(text)
    stage = OthersMaking(tmp_path / "own.toml")
    plan = make_plan(stage.fitted(SCENARIOS["p7"]), 1, 0.5, stage.possible)
    targets = ["m1", "m2|m3", "m3>m1", "coordinator", "clients"]
    faults = [Fault(f"f{n}", "pause", target, n, 1) for n, target in enumerate(targets)]
    cast = stage.cast(msgspec.structs.replace(plan, faults=faults))
    assert [fault.target for fault in cast.faults] == [
        "m3", "b|c", "c>m3", "coordinator", "clients",
    ]  # fmt: skip
    assert {fault.target for fault in stage.cast(plan).faults} <= {"m3", "b", "c", "clients"}
    with pytest.raises(MigratoryError, match="OTHER_CLUSTER: the plan is for 5 members"):
        stage.cast(msgspec.structs.replace(plan, members=5))


# ---- faults and traces by hooks -----------------------------------------------------------------


ALL_BUT_M2 = ("m1", "m3", "z1", "z2", "z3", "clients")


@pytest.mark.parametrize(
    ("kind", "target", "cuts"),
    [
        ("cut-one-way", "m1>m2", {("m1", "m2")}),
        ("cut-pair", "m1|m2", {("m1", "m2"), ("m2", "m1")}),
        ("mute", "m2", {("m2", other) for other in ALL_BUT_M2}),
        ("cut", "m2", {w for o in ALL_BUT_M2 for w in (("m2", o), (o, "m2"))}),
        ("cut-peers", "m2", {w for o in ("m1", "m3") for w in (("m2", o), (o, "m2"))}),
        ("cut-zookeeper", "m2", {w for o in ("z1", "z2", "z3") for w in (("m2", o), (o, "m2"))}),
        (
            "cut-clients",
            "all",
            {w for m in "123" for w in ((f"m{m}", CLIENTS), (CLIENTS, f"m{m}"))},
        ),
    ],
)
async def test_cuts_are_between_those_that_the_fault_names(
    tmp_path: Path, kind: str, target: str, cuts: set[tuple[str, str]]
) -> None:
    """Each kind of cut calls its hook for each way that is cut, and heals each of them."""
    say = '["sh", "-c", "echo {} {from} {from_host} {to} {to_host} >> said"]'
    hooks = f"cut = {say.replace('{}', 'cut')}\nheal = {say.replace('{}', 'heal')}\n"
    cluster = cluster_of(tmp_path, hooks)

    async def hold(_hit: str) -> None:
        assert spoken("cut") == cuts
        assert spoken("heal") == set()

    def spoken(verb: str) -> set[tuple[str, str]]:
        lines = [line.split() for line in (tmp_path / "said").read_text().splitlines()]
        assert all(line[2] == ("here" if line[1] == CLIENTS else HOST[line[1]]) for line in lines)
        return {(line[1], line[3]) for line in lines if line[0] == verb}

    await cluster.breaks()[kind](cluster, target, Silent(hold))
    assert spoken("heal") == cuts


class Silent:
    """A hold that nobody writes down."""

    def __init__(self, last: Hold) -> None:
        self._last = last

    def begin(self, hit: str) -> None:
        """Nothing."""

    async def __call__(self, hit: str) -> None:
        """Hold."""
        await self._last(hit)


async def test_a_fault_begins_when_its_hook_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that takes longer than faults wait for their moment still happens, from its start."""
    monkeypatch.setattr("chaos.nemesis.PATIENCE", 0.2)
    pause = 'pause = ["sh", "-c", "sleep 0.6; echo {member}"]\n'
    hooks = pause + 'resume = ["touch", "resumed-{member}"]\n'
    cluster = cluster_of(tmp_path, hooks)
    (tmp_path / "traces").mkdir()
    with notes(tmp_path / "traces", "drill-1", "nemesis", 1) as trace:
        nemesis = Nemesis(cluster, trace, lambda: None, cluster.breaks())
        await nemesis.carry_out(Fault("f1", "pause", "m1", 0, 100))
    assert (nemesis.happened, nemesis.active) == (1, {})
    assert (tmp_path / "resumed-m1").exists()
    rows = decode_rows((tmp_path / "traces" / "nemesis.0.jsonl").read_bytes())
    assert [row.kind for row in rows] == ["fault_on", "fault_off"]
    assert rows[1].t_mono - rows[0].t_mono > 700_000


HOST = {f"{letter}{n}": f"127.0.0.{n}" for letter in "mz" for n in (1, 2, 3)}


async def test_a_member_has_one_fault_at_a_time(tmp_path: Path) -> None:
    """A pause waits until a killed member is there again, as nothing else could be paused."""
    say = '["sh", "-c", "echo {} {member} >> said"]'
    verbs = ("kill", "start", "pause", "resume")
    cluster = cluster_of(tmp_path, "".join(f"{v} = {say.replace('{}', v)}\n" for v in verbs))
    breaks = cluster.breaks()

    async def hold(_hit: str) -> None:
        await trio.sleep(0.3)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(breaks["kill-long"], cluster, "m1", Silent(hold))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(breaks["pause"], cluster, "m1", Silent(hold))
    assert (tmp_path / "said").read_text().split() == [w for v in verbs for w in (v, "m1")]
    assert cluster.forgetful == {"m1"}


async def test_no_more_members_forget_than_survived(tmp_path: Path) -> None:
    """A second kill at the same moment waits until the first member is NORMAL again."""
    say = '["sh", "-c", "echo {} {member} >> said"]'
    hooks = "".join(f"{v} = {say.replace('{}', v)}\n" for v in ("kill", "start"))
    cluster = cluster_of(tmp_path, hooks)

    async def hold(_hit: str) -> None:
        await trio.lowlevel.checkpoint()

    with trio.move_on_after(3):
        async with trio.open_nursery() as nursery:
            for name in ("m1", "m2"):
                nursery.start_soon(cluster.breaks()["kill-quick"], cluster, name, Silent(hold))
    killed, started = (tmp_path / "said").read_text().splitlines()
    assert killed.replace("kill", "start") == started
    assert cluster.forgetful == {started.split()[1]}


async def test_only_whole_rows_of_the_run_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of other runs, other processes and lines without an end stay where they are."""
    hook = 'collect = ["sh", "-c", "cp traces/{member}* {into}"]\n'
    cluster = cluster_of(tmp_path, hook, directory="")
    elsewhere, mine = tmp_path / "traces", '{"run":"drill-1","n":%d}\n'
    elsewhere.mkdir()
    (elsewhere / "m1-1.0.jsonl").write_text('{"run":"drill-0","n":0}\n')
    (elsewhere / "m1-2.0.jsonl").write_text('{"run":"drill-0","n":0}\n' + mine % 0 + '{"run":"dr')
    (elsewhere / "m2-1.0.jsonl").write_text('{"run":"drill-10","n":0}\n')
    (elsewhere / "m3-1.0.jsonl").write_text(mine % 0 + mine % 1)
    (elsewhere / "m3-1.1.jsonl").write_text(mine % 2)
    (elsewhere / "m30-1.0.jsonl").write_text(mine % 0)
    (elsewhere / "workload.0.jsonl").write_text(mine % 0)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # the file and its hooks are elsewhere
    cluster.directory = Path("out")
    cluster.directory.mkdir()
    await cluster.collect()
    taken = {p.name: p.read_text() for p in (cluster.directory / "traces").iterdir()}
    assert taken == {
        "m1-2.0.jsonl": mine % 0, "m3-1.0.jsonl": mine % 0 + mine % 1, "m3-1.1.jsonl": mine % 2,
    }  # fmt: skip
    assert [path.name for path in cluster.directory.iterdir()] == ["traces"]


def test_sampled_traces_are_not_taken_for_full_ones(tmp_path: Path) -> None:
    """Topics of which members wrote nothing would look like lost messages: it is an error."""
    file = cluster_of(tmp_path, "").file
    row = '{"run":"drill-1","kind":"%s","topic":"/chaos/drill-1/%d"}\n'
    (tmp_path / "m1-1.0.jsonl").write_text(row % ("commit", 1))
    (tmp_path / "workload.0.jsonl").write_text(row % ("pub_ack", 1))
    check_fullness(tmp_path, file)
    (tmp_path / "workload.0.jsonl").write_text(row % ("pub_ack", 1) + row % ("pub_ack", 2))
    with pytest.raises(MigratoryError, match=r"TRACE_NOT_FULL: .* 1 of 2 topics"):
        check_fullness(tmp_path, file)
