"""Command sections: the header format, what is refused, and how sections are executed."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from nanolab.evidence import repo_root
from nanolab.load.sidebyside import free_port
from nanolab.manual import commands, runner
from nanolab.manual.commands import Section, Tier
from nanolab.manual.errors import ManualError


def write(root: Path, name: str, body: str) -> Path:
    path = root / commands.COMMANDS_DIR / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(body, encoding="utf-8")
    return path


def section(name: str, body: str = "true", header: str = "# tier: cpu") -> str:
    return f"{header}\n# --8<-- [start:{name}]\n{body}\n# --8<-- [end:{name}]\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small tree with a model maker that only leaves a mark."""
    root = tmp_path / "lab"
    maker = root / runner.MAKE_MODEL
    maker.parent.mkdir(parents=True)
    maker.write_text(
        "import pathlib, sys\nout = pathlib.Path(sys.argv[-1]); out.mkdir(parents=True)\n"
        "(out / 'config.json').write_text('{}')\n"
    )
    return root


def execute(root: Path, tmp_path: Path, *only: str) -> dict[str, runner.Outcome]:
    sections = commands.load(root)
    selected = runner.select(sections, Tier.CPU, only)
    scratch = runner.prepare(root, tmp_path / "work")
    return {o.section.ref: o for o in runner.run(scratch, selected, sections)}


def test_header_is_read(root: Path) -> None:
    header = (
        "# tier: gpu reason=replays graphs\n# expect: 4\n# needs: first, no-model\n# block: a, gpu-*\n"
        "# timeout: 7\n# prints: PASS, really\n# prints: done"
    )
    path = write(root, "5-1-x.sh", section("first") + "\n" + section("second", "  one\n    two", header))
    second = commands.parse(path)[1]
    assert second == Section(
        file="5-1-x",
        name="second",
        line=second.line,
        body="one\n  two\n",
        tier=Tier.GPU,
        reason="replays graphs",
        expect=4,
        needs=("5-1-x:first", "no-model"),
        blocks=("a", "gpu-*"),
        timeout_s=7,
        prints=("PASS, really", "done"),
    )
    assert path.read_text().splitlines()[second.line - 1] == "# --8<-- [start:second]"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (section("a", header="# a comment"), "needs a header line"),
        (section("a", header="# tier: tpu"), "saw 'tpu'"),
        (section("a", header="# tier: gpu"), "must say why"),
        (section("a", header="# tier: cpu\n# expects: 3"), "unknown header key 'expects'"),
        (section("a", header="# tier: cpu\n# expect: -1"), "whole number"),
        (section("a", header="# tier: cpu\n"), "directly above"),
        (section("a", ""), "is empty"),
        (section("a") + section("a"), "defined twice"),
        ("echo lost\n", "outside a section"),
        ("# tier: cpu\n# --8<-- [start:a]\ntrue\n", "never closed"),
        ("# --8<-- [end:a]\n", "closes nothing"),
        ("# tier: cpu\n# --8<-- [start:a b]\n", "not a section marker"),
    ],
)
def test_a_malformed_file_names_its_line(root: Path, text: str, why: str) -> None:
    with pytest.raises(ManualError) as caught:
        commands.parse(write(root, "bad.sh", text))
    assert why in caught.value.message
    assert "bad.sh:" in caught.value.message


def test_a_reference_to_nothing_is_refused(root: Path) -> None:
    write(root, "a.sh", section("one", header="# tier: cpu\n# needs: b:two"))
    with pytest.raises(ManualError, match="b:two"):
        commands.load(root)


def test_a_block_finds_the_section_that_makes_it(root: Path) -> None:
    write(root, "a.sh", section("one", header="# tier: cpu\n# block: quick-A") + section("two"))
    sections = commands.load(root)
    assert [s.ref for s in commands.sections_for_block(sections, "quick-A")] == ["a:one"]
    assert commands.sections_for_block(sections, "quick-B") == []


def test_sections_run_in_order_and_share_files(root: Path, tmp_path: Path) -> None:
    write(root, "b.sh", section("last", 'test "$(cat runs/x)" = 12'))
    write(root, "a.sh", section("one", "mkdir runs; printf 1 > runs/x") + section("two", "printf 2 >> runs/x"))
    outcomes = execute(root, tmp_path)
    assert list(outcomes) == ["a:one", "a:two", "b:last"]
    assert {o.problem for o in outcomes.values()} == {""}
    assert not (root / "runs").exists()


@pytest.mark.parametrize(
    ("body", "header", "problem"),
    [
        ("exit 4", "# tier: cpu\n# expect: 4", ""),
        ("exit 4", "# tier: cpu", "exit code 4, expected 0"),
        ("true", "# tier: cpu\n# expect: 4", "exit code 0, expected 4"),
        ("false\ntrue", "# tier: cpu", "exit code 1, expected 0"),
        ("false | cat", "# tier: cpu", "exit code 1, expected 0"),
        ('echo "$UNSET_NAME"', "# tier: cpu", "exit code 1"),
        ("echo REVIEW", "# tier: cpu\n# prints: PASS", "its output lacks 'PASS'"),
        ("read line", "# tier: cpu\n# expect: 1", ""),
    ],
)
def test_the_outcome_is_judged(root: Path, tmp_path: Path, body: str, header: str, problem: str) -> None:
    write(root, "a.sh", section("one", body, header))
    found = execute(root, tmp_path)["a:one"].problem
    assert found.startswith(problem) if problem else found == ""


def test_a_section_past_its_time_is_ended_with_its_children(root: Path, tmp_path: Path) -> None:
    write(root, "a.sh", section("one", "sleep 300 & echo $! > pid; wait", "# tier: cpu\n# timeout: 1"))
    outcome = execute(root, tmp_path)["a:one"]
    assert "did not end within 1 s" in outcome.problem
    pid = int((tmp_path / "work" / "tree" / "pid").read_text())
    deadline = time.monotonic() + 10
    while _alive(pid):
        assert time.monotonic() < deadline, f"process {pid} outlived its section"
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    """A zombie that nobody has waited for yet counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_model_is_in_place_unless_the_section_makes_it(root: Path, tmp_path: Path) -> None:
    made = f"test ! -e {runner.MODEL} && mkdir -p {runner.MODEL} && touch {runner.MODEL}/mine"
    write(
        root,
        "a.sh",
        section("given", f"test -f {runner.MODEL}/config.json")
        + section("makes", made, "# tier: cpu\n# needs: no-model")
        + section("keeps", f"test -f {runner.MODEL}/mine"),
    )
    assert {o.problem for o in execute(root, tmp_path).values()} == {""}


def test_the_callers_lab_does_not_leak_in(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANO_DIR", "/somewhere")
    check = 'test -z "${NANO_DIR:-}"; test "$PYTHONPATH" = "$PWD/src"; test "$HOME" != "' + str(Path.home()) + '"'
    write(root, "a.sh", section("one", check))
    assert execute(root, tmp_path)["a:one"].problem == ""


def test_only_pulls_in_what_a_section_needs(root: Path, tmp_path: Path) -> None:
    write(root, "a.sh", section("init", "touch made") + section("other"))
    write(root, "b.sh", section("use", "test -f made", "# tier: cpu\n# needs: a:init"))
    outcomes = execute(root, tmp_path, "b")
    assert list(outcomes) == ["a:init", "b:use"]
    assert {o.problem for o in outcomes.values()} == {""}
    with pytest.raises(ManualError, match="no such file or section"):
        runner.select(commands.load(root), Tier.CPU, ["c"])


def test_a_file_left_out_runs_only_what_others_need_of_it(root: Path) -> None:
    write(root, "a.sh", section("init") + section("other"))
    write(root, "b.sh", section("use", header="# tier: cpu\n# needs: a:init") + section("alone"))
    selected = runner.select(commands.load(root), Tier.CPU, [], without=["a"])
    assert [s.ref for s in selected] == ["a:init", "b:use", "b:alone"]


def test_a_circle_of_needs_is_refused(root: Path) -> None:
    header = "# tier: cpu\n# needs: {}"
    write(root, "a.sh", section("x", header=header.format("y")) + section("y", header=header.format("x")))
    with pytest.raises(ManualError, match="circle"):
        runner.select(commands.load(root), Tier.CPU, [])


SERVER = "python -u -m http.server --bind 127.0.0.1 {port}"


def test_a_server_runs_beside_its_client(root: Path, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    client = f"python -c 'import urllib.request as u; u.urlopen(\"{url}\").read()'"
    write(
        root,
        "a.sh",
        section("serve", SERVER.format(port=port), f"# tier: cpu\n# background: {url}")
        + section("client", client, "# tier: cpu\n# with: serve")
        + section("alone", f"! {client} 2>/dev/null"),
    )
    outcomes = execute(root, tmp_path)
    assert list(outcomes) == ["a:client", "a:alone"]
    assert {o.problem for o in outcomes.values()} == {""}


def test_a_server_that_dies_fails_its_client(root: Path, tmp_path: Path) -> None:
    write(
        root,
        "a.sh",
        section("serve", "exit 7", "# tier: cpu\n# background: http://127.0.0.1:1/")
        + section("client", header="# tier: cpu\n# with: serve"),
    )
    assert "ended with 7 before it was ready" in execute(root, tmp_path)["a:client"].problem


@pytest.mark.parametrize("starts", ["background", "inline"])
def test_a_port_that_answers_already_is_refused_before_anything_starts(root: Path, tmp_path: Path, starts: str) -> None:
    """Somebody else's server: the client would be answered, and by the wrong one."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        mark = "touch started"
        if starts == "background":
            server = section("serve", mark, f"# tier: cpu\n# background: http://127.0.0.1:{port}/")
            text = server + section("client", mark, "# tier: cpu\n# with: serve")
        else:
            text = section("client", f"{mark} # serve --port {port}")
        write(root, "a.sh", text + section("elsewhere", "echo --port 1 >/dev/null"))
        outcomes = execute(root, tmp_path)
    problem = outcomes["a:client"].problem
    assert f"starts a server on port {port}, where another one answers already; stop that one" in problem
    assert f"sport = :{port}" in problem
    assert not (tmp_path / "work" / "tree" / "started").exists()
    assert outcomes["a:elsewhere"].problem == ""


def test_the_ports_of_a_section_are_its_urls_and_its_options() -> None:
    body, url = "a --port 8802 &\nb --port=8803", "http://127.0.0.1:8801/health"
    three = Section(file="a", name="s", line=1, body=body, tier=Tier.CPU, background=url)
    assert runner.ports(three) == [8801, 8802, 8803]
    repository = {port for section in commands.load(repo_root()) for port in runner.ports(section)}
    assert {8801, 8802} <= repository


def test_a_used_workdir_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mine").touch()
    with pytest.raises(ManualError, match="not empty"):
        runner.prepare(root, tmp_path / "work")


def test_the_repositorys_own_sections_parse() -> None:
    sections = commands.load(repo_root())
    assert len({s.ref for s in sections}) == len(sections)
