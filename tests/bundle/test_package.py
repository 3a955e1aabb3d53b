"""The release of this very commit: what is in it, what is caught, and that it is the same bytes elsewhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_lab import Package, load_program, write
from click.testing import CliRunner

from nanolab import final_report
from nanolab.bundle import archive, book, check, contents, documents, release, scan, sums
from nanolab.errors import LabError
from nanolab.evidence import repo_root

TOP = contents.TOP


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as opened:
        return {info.filename: opened.read(info) for info in opened.infolist()}


def repack(package: Package, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The package with its entries changed, written as a release is written."""
    changed = entries(package.zip)
    change(changed)
    epoch = contents.release_of(changed[f"{TOP}/validation/release.json"]).epoch
    executable = {i.filename for i in zipfile.ZipFile(package.zip).infolist() if i.external_attr >> 16 == 0o100755}
    with zipfile.ZipFile(target, "w") as opened:
        for name in sorted(changed, key=lambda name: name.rstrip("/").encode()):
            opened.writestr(archive.entry(name, epoch, executable=name in executable), changed[name])
    return target


def test_the_package_is_whole(package: Package) -> None:
    assert check.problems(package.zip) == []


def test_repacking_alone_changes_nothing(package: Package, tmp_path: Path) -> None:
    assert repack(package, tmp_path / "z.zip", lambda changed: None).read_bytes() == package.zip.read_bytes()


@pytest.mark.parametrize("name", contents.REQUIRED)
def test_holds_what_a_reader_looks_for(package: Package, name: str) -> None:
    assert (package.tree / name).exists()


def test_one_directory_with_empty_runs_and_templates(package: Package) -> None:
    assert {name.partition("/")[0] for name in entries(package.zip)} == {TOP}
    assert list((package.tree / "runs").iterdir()) == []
    templates = {f"{note.name}.md" for note in final_report.NOTES}
    assert {path.name for path in (package.tree / "notes").iterdir()} == templates


def test_the_lab_is_that_of_the_commit(package: Package, tmp_path: Path) -> None:
    facts = json.loads((package.tree / "validation" / "release.json").read_text())
    archived = subprocess.run(
        ["git", "-C", str(repo_root()), "archive", facts["commit"], "src", "scripts", "env.sh"],
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "x", "-C", str(tmp_path)], input=archived.stdout, check=True)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert (package.tree / path.relative_to(tmp_path)).read_bytes() == path.read_bytes()


def test_sums_verify_and_catch_one_changed_byte(package: Package, tmp_path: Path) -> None:
    tree = tmp_path / TOP
    shutil.copytree(package.tree, tree)

    def verify() -> subprocess.CompletedProcess[str]:
        command = ["sha256sum", "-c", "--quiet", sums.NAME]
        return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)

    assert verify().returncode == 0, verify().stderr
    path = tree / book.NAME
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done = verify()
    assert done.returncode != 0
    assert f"{book.NAME}: FAILED" in done.stdout


def test_check_names_everything_that_is_wrong(package: Package, tmp_path: Path) -> None:
    """One look at a package with many faults; each must be named, and nothing else."""

    def change(changed: dict[str, bytes]) -> None:
        for name in ("env.sh", "runs/"):
            del changed[f"{TOP}/{name}"]
        unwanted = ("src/new.py", "runs/quick-A.json", "src/model.safetensors", "engine/x.py", "src/nanovllm/x.py")
        changed |= {f"{TOP}/{name}": b"x" for name in unwanted}
        changed[f"{TOP}/notes/x.md"] = b"see /home/alice/lab/x"
        name = f"{TOP}/src/nanoengine/engine/scheduler.py"
        changed[name] = changed[name].replace(b"def ", b"deF ", 1)
        name = f"{TOP}/{book.NAME}"
        changed[name] = changed[name].replace(b'href="#zh-index"', b'href="#zh-gone"', 1)

    assert sorted(check.problems(repack(package, tmp_path / "z.zip", change))) == [
        "SHA256SUMS: env.sh is missing",
        "SHA256SUMS: src/model.safetensors is not listed",
        "SHA256SUMS: src/nanoengine/engine/scheduler.py differs",
        "SHA256SUMS: src/nanovllm/x.py is not listed",
        "SHA256SUMS: src/new.py is not listed",
        f"SHA256SUMS: {book.NAME} differs",
        "engine/x.py lies in a directory that is not released",
        "env.sh is missing",
        "notes/x.md:1 holds a home directory: '/home/alice/lab/x'",
        "runs is missing",
        "runs/quick-A.json: runs/ must be empty",
        "src/model.safetensors does not belong into a release",
        "src/nanovllm/x.py lies in a directory that is not released",
        f"{book.NAME}: a link leads to 'zh-gone', which is not there",
    ]


def test_check_refuses_to_look_outside(package: Package, tmp_path: Path) -> None:
    names = ["other/x", f"{TOP}/../x"]
    target = repack(package, tmp_path / "z.zip", lambda changed: changed.update(dict.fromkeys(names, b"")))
    assert sorted(check.problems(target)) == sorted(f"{n} is outside the one top directory {TOP}/" for n in names)


def test_check_sees_how_a_zip_was_written(package: Package, tmp_path: Path) -> None:
    target = tmp_path / "z.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in reversed(entries(package.zip).items()):
            opened.writestr(name, content)
    problems = check.problems(target)
    assert "the entries are not sorted by name" in problems
    assert f"{TOP}/env.sh is not stored as Unix stores it" in problems
    assert f"{TOP}/env.sh has mode ?rw-------" in problems


def test_the_manual_says_what_the_site_says(package: Package) -> None:
    html = (package.tree / book.NAME).read_text(encoding="utf-8")
    assert book.text_differences(html, package.tree / "site") == []
    assert book.problems(html) == []
    pages = {path.relative_to(package.tree / "site").as_posix() for path in (package.tree / "site").rglob("*.html")}
    for page in ("index.html", "ch5/5-1-setup.html", "en/appendix-b/b-1-mathematics.html"):
        assert page in pages


def test_documents_and_readme_fit_the_bundle(package: Package) -> None:
    for name in documents.NAMES:
        text = (package.tree / name).read_text(encoding="utf-8")
        assert "](docs/" not in text  # the pages' sources are not here
    readme = (package.tree / "README.md").read_text(encoding="utf-8")
    assert "{{" not in readme
    assert "离线包 v6" in readme
    assert readme.count("python -m pip install -r requirements-cpu.txt\n") == 2
    for language in ("## 中文", "## English"):
        assert language in readme


def test_links_of_the_root_documents_lead_somewhere(package: Package) -> None:
    for name in ("README.md", *documents.NAMES):
        text = (package.tree / name).read_text(encoding="utf-8")
        for part in text.split("](")[1:]:
            path, _, fragment = part.partition(")")[0].partition("#")
            if path and not path.startswith("http"):
                target = package.tree / path
                assert target.is_file(), (name, path)
                assert not fragment or f'id="{fragment}"' in target.read_text(encoding="utf-8"), (name, path, fragment)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"a\nb /home/someone/lab\n", ["x:2 holds a home directory: '/home/someone/lab'"]),
        (b"/Users/a.b/x", ["x:1 holds a home directory: '/Users/a.b/x'"]),
        (b"see /root/lab", ["x:1 holds root's directory: '/root/lab'"]),
        (rb"C:\Users\someone", [r"x:1 holds a Windows home: 'C:\\Users\\someone'"]),
        (b"/opt/v/lib/python3.11/site-packages/x", ["x:1 holds an installed package's place"]),
        (b"/tmp/nanolab-abc/x", ["x:1 holds a temporary directory"]),
        (b"at /srv/build/lab: x", ["x:1 holds the directory: '/srv/build/lab: x'"]),
        (b"on machine-7.", ["x:1 holds the host: 'machine-7.'"]),
        (b"/home/YOUR_USER/x $HOME/nanolab /srv/build/laboratory machine-77 ~/root/x", []),
    ],
)
def test_scan(text: bytes, found: list[str]) -> None:
    seen = scan.findings("x", text, {"the directory": b"/srv/build/lab", "the host": b"machine-7"})
    assert len(seen) == len(found), seen
    assert all(line.startswith(wanted) for line, wanted in zip(seen, found, strict=True)), seen


def test_this_machine_is_looked_for() -> None:
    assert str(repo_root()).encode() in scan.machine_words().values()


@pytest.mark.parametrize("version", ["6", "v6-rc/1", "", "v"])
def test_a_version_is_a_version(version: str) -> None:
    with pytest.raises(LabError, match="write v and a number"):
        contents.Release(version, "", 1767225600)


def test_what_is_no_zip_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"x.zip": "not a zip"})
    with pytest.raises(LabError, match="is no zip"):
        check.problems(tmp_path / "x.zip")


def test_the_program_concludes(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load_program()
    for problems, code, word in (([], 0, "PASS"), (["env.sh is missing"], 1, "FAIL")):
        monkeypatch.setattr(program.check, "problems", lambda path, found=problems: found)
        done = CliRunner().invoke(program.main, ["check", str(package.zip)])
        assert (done.exit_code, done.output.splitlines()[-1]) == (code, word)
        assert all(problem in done.output for problem in problems)


@pytest.mark.slow
def test_another_directory_umask_and_time_zone_give_the_same_bytes(package: Package) -> None:
    assert release.rebuilt_differs(repo_root(), package.zip) == []
