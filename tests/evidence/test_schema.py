"""The schema and the scrub check: what a block must have, and what it must never hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanolab.errors import LabError
from nanolab.evidence import InvalidBlock, format_json, load, problems, validate
from nanolab.evidence import schema as schema_module
from nanolab.evidence.scrub import Scrubber, leaks

Make = Callable[..., dict[str, Any]]


def test_a_valid_block_passes(make_block: Make) -> None:
    assert problems(make_block()) == []


@pytest.mark.parametrize("key", ["schema", "check", "command", "device", "sources_sha256", "volatile", "git"])
def test_a_missing_field_is_named(make_block: Make, key: str) -> None:
    block = make_block()
    del block[key]
    with pytest.raises(InvalidBlock, match=key):
        validate(block)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"check": "OK"}, "check: 'OK'"),
        ({"evidence": "gpu"}, "device.kind: 'cuda' was expected"),
        ({"engine": None}, "engine: None is not of type 'object'"),
        ({"title": {"en": "Only English"}}, "title: 'zh'"),
        ({"id": "../escape"}, "id: '../escape'"),
        ({"sources_sha256": {}}, "sources_sha256"),
        ({"sources_sha256": {"a.py": "short"}}, "sources_sha256.a.py"),
        ({"started_at": "yesterday"}, "started_at"),
        ({"surprise": 1}, "surprise"),
        ({"git": {"commit": "main", "dirty": False}}, "git.commit"),
    ],
)
def test_what_the_schema_refuses(make_block: Make, changes: dict[str, Any], complaint: str) -> None:
    assert any(complaint in line for line in problems(make_block(**changes)))


@pytest.mark.parametrize(
    "text",
    [
        "/home/someone/lab", "see /mnt/data/x.json for it", "--log=/scratch/a.log", "(/tmp/x)", "C:\\Users\\someone",
        "file:/etc/passwd".replace("file:", "at "),
    ],
)  # fmt: skip
def test_an_absolute_path_is_refused_wherever_it_hides(make_block: Make, text: str) -> None:
    hiding_places = ({"notes": [text]}, {"config": {"a": {"b": [text]}}}, {"result": {text: 1}}, {"command": [text]})
    for changes in hiding_places:
        with pytest.raises(InvalidBlock, match="absolute path") as caught:
            validate(make_block(**changes))
        assert "relative to the repository" in caught.value.message


@pytest.mark.parametrize(
    "text",
    ["3/0/3", "1200 tok/s", "https://example.org/a/b", "POST /v1/chat/completions", "GET /metrics", "a / b",
     "src/nanolab/x.py", "./x", "../x", "$MODEL_DIR/config.json", "prefill/decode", "</td>", "~/lab", "/dev/shm/x"],
)  # fmt: skip
def test_what_is_no_machine_path_is_allowed(text: str) -> None:
    assert leaks({"notes": [text]}) == []


def test_user_and_host_names_are_refused_as_whole_words(make_block: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "zhang")
    monkeypatch.setattr("socket.gethostname", lambda: "node17")
    assert leaks(make_block(notes=["run by zhang"])) == ["notes[0]: the value of $USER"]
    assert len(leaks(make_block(config={"where": "node17"}))) == 2  # $HOSTNAME and its short form
    assert leaks(make_block(notes=["zhangsan and node171"])) == []


@pytest.mark.parametrize("name", ["root", "user", "li"])
def test_names_that_identify_nobody_are_words(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: name)
    assert leaks({"notes": [f"the {name} of it"]}) == []


def test_scrubbing_prefers_the_repository_then_named_places(tmp_path: Path) -> None:
    home = tmp_path / "home"
    root = home / "lab"
    scrubber = Scrubber(root, {"HOME": str(home), "MODEL_DIR": str(home / "models" / "q"), "NANO_DIR": "engine"})
    text = scrubber.text
    assert text(f"{root}/runs/x.json") == "runs/x.json"
    assert text(str(root)) == "."
    assert text(f"{home}/models/q/config.json") == "$MODEL_DIR/config.json"
    assert text(f"{home}/other") == "$HOME/other"
    assert text("/opt/place/tool") == "$ELSEWHERE/tool"


def test_a_repository_with_a_space_in_its_name(tmp_path: Path) -> None:
    root = tmp_path / "my lab"
    scrubber = Scrubber(root, {"MODEL_DIR": str(tmp_path / "my models" / "m")})
    assert scrubber.text(f"--out={root}/runs/a b.json") == "--out=runs/a b.json"
    assert scrubber.text(f"{root} {root}/x {tmp_path}/my models/m/c.json") == ". x $MODEL_DIR/c.json"
    assert scrubber.text(f"{root}-old/x").startswith("$")


def test_the_id_pattern_is_that_of_the_schema() -> None:
    schema = json.loads(Path(schema_module.__file__).with_name("block.schema.json").read_text())
    assert schema["properties"]["id"]["pattern"] == f"^{schema_module.ID_PATTERN}$"


def test_scrubbed_text_has_no_leak(tmp_path: Path) -> None:
    dirty = [f"{tmp_path}/a", "/usr/lib/x.so: cannot open", "D:\\data", {"k": ["/a/b"]}]
    assert leaks(Scrubber(tmp_path / "lab").clean(dirty)) == []


def test_load_explains_what_is_no_block(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    with pytest.raises(LabError, match="cannot be read"):
        load(path)
    path.write_text('{"schema":')
    with pytest.raises(InvalidBlock, match="is not JSON"):
        load(path)
    path.write_text("[]")
    with pytest.raises(InvalidBlock, match="not of type 'object'"):
        load(path)


def test_formatting_is_deterministic_and_round_trips(make_block: Make) -> None:
    block = make_block(result={"rows": [[1, 2], [3, 4]], "deep": {"a": {"b": []}}, "long": list(range(80)), "e": {}})
    text = format_json(block)
    assert json.loads(text) == block
    assert text == format_json(json.loads(text))
    assert text.endswith("}\n")
    assert '"rows": [[1, 2], [3, 4]]' in text
    assert "案例" in text
