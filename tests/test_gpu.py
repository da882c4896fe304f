"""``sslbook gpu``: its plan, its clock and its bundle; and, on a processor, all of it, killed in the middle of every step."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sslbook import cli, datasets
from sslbook.arguments import InputError
from sslbook.bench.gpu import bundle, drive, report, work
from sslbook.bench.gpu.desk import MACHINE, Desk, opened
from sslbook.bench.gpu.machine import find
from sslbook.bench.gpu.plan import STEPS, choose
from sslbook.book.layout import PACKAGE
from sslbook.records import recorded

TINY = [sys.executable, "-m", "sslbook", "gpu", "--device", "cpu", "--tiny"]
TIMES = ("origin", "seconds", "images_per_second", "value", "verdict")
"""What differs from one run of the same step to the next."""


def start(out: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*TINY, "--out", str(out), *arguments], cwd=PACKAGE.parent, stdout=subprocess.DEVNULL)


def numbers(folder: Path, pattern: str) -> dict[str, Any]:
    """The JSON files of a folder without what is a time."""
    found = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in sorted(folder.glob(pattern))}
    assert found, f"{folder} has no {pattern}"
    return {name: timeless(content) for name, content in found.items()}


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        value = {k: v for k, v in value.items() if k not in TIMES or (k == "value" and "name" in value)}
        return {k: timeless(v) for k, v in value.items()}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def workers(out: Path) -> list[int]:
    """The processes that work in a folder, by what the system says of their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sslbook.bench.gpu.work" in words and str(out).encode() in words:
            found.append(int(path.parent.name))
    return found


def wait_for(condition: Any, seconds: float = 300) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def begun(out: Path, step: str, running: subprocess.Popen[bytes]) -> bool:
    """Whether a step has kept an item, or has come to its end."""
    return bool(Desk(out, "cpu", True).done(step)) or running.poll() is not None


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="asks /proc which processes there are")
def test_a_plan_killed_in_every_step_ends_with_the_same_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    undisturbed = subprocess.run([*TINY, "--out", str(calm)], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert undisturbed.returncode == 0, undisturbed.stdout + undisturbed.stderr
    cut = []
    for step in STEPS:
        whole = Desk(calm, "cpu", True)
        running = start(killed, "--only", step.name)
        wait_for(lambda: workers(killed))
        if len(items := whole.done(step.name)) > 1:  # when the first of several items is there
            wait_for(partial(begun, killed, step.name, running), 900)
        else:
            time.sleep(min(2.0, whole.spent(step.name) / 4))
        running.send_signal(signal.SIGTERM if step.name == "byol" else signal.SIGKILL)
        running.wait()
        wait_for(lambda: not workers(killed))  # which have lost their parent
        if items.keys() - Desk(killed, "cpu", True).done(step.name).keys():
            cut.append(step.name)
        again = start(killed, "--only", step.name)
        assert again.wait() == 0, (killed / "logs" / f"{step.name}.log").read_text()
    assert len(cut) >= 5, f"in the middle of {cut} alone"
    for pattern in ("done/**/*.json", "records/*.json"):
        assert numbers(killed, pattern) == numbers(calm, pattern)
    with zipfile.ZipFile(calm / report.ARCHIVE) as archive:
        names = archive.namelist()
    assert MACHINE in names
    assert "records/A-Tab2.json" in names
    assert not [name for name in names if name.endswith(".pt")], "checkpoints are too large to carry"
    assert cli.main(["gpu", "--merge", str(calm)]) == 2
    assert "made with --tiny" in capsys.readouterr().err


@pytest.mark.slow
def test_the_clock_stops_a_step_that_can_go_on(tmp_path: Path) -> None:
    desk, (step,) = Desk(tmp_path, "cpu", True), choose(["simclr"])
    desk.begin(find("cpu"))
    said: list[str] = []
    (outcome,) = drive.work_through(desk, [step], soon(drive.GRACE + drive.LEAST + 0.5), {}, said.append)
    if outcome.status != drive.STOPPED:
        assert outcome.status == drive.DONE, "on a machine that needs less than fifteen seconds"
    assert not workers(tmp_path)
    (outcome,) = drive.work_through(desk, [step], soon(600), {}, said.append)
    assert outcome.status == drive.DONE
    assert len(desk.done("simclr")) == 2


def soon(seconds: float) -> float:
    return time.monotonic() + seconds


def test_nothing_begins_when_the_time_is_over(tmp_path: Path) -> None:
    outcomes = drive.work_through(Desk(tmp_path, "cpu", True), STEPS, soon(drive.GRACE + 1), {}, lambda line: None)
    assert {outcome.status for outcome in outcomes} == {drive.STOPPED}
    assert not (tmp_path / "logs").exists()


def test_a_long_step_starves_none_and_goes_on_when_the_others_had_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets at most its share, over all calls; what is left at the end goes to those that need more, in their order."""
    desk, asked = Desk(tmp_path, "cpu", False), list[tuple[str, float]]()
    steps = [replace(step, needs=(), images=False) for step in choose(["simclr", "chapters", "tables"])]
    simclr = steps[0]

    def go(desk: Desk, step: Any, seconds: float, environment: Any) -> drive.Outcome:
        asked.append((step.name, seconds))
        if step is simclr:
            return drive.Outcome(step.name, drive.STOPPED, seconds)
        return drive.Outcome(step.name, drive.DONE, 10.0)

    monkeypatch.setattr(drive, "_go", go)
    outcomes = drive.work_through(desk, steps, soon(10_000), {}, lambda line: None)
    assert [name for name, _ in asked] == ["simclr", "chapters", "tables", "simclr"]
    assert asked[0][1] == simclr.share(False) == 1350
    assert asked[-1][1] == pytest.approx(10_000 - drive.GRACE, abs=5)
    assert [outcome.status for outcome in outcomes] == [drive.STOPPED, drive.DONE, drive.DONE]
    asked.clear()
    drive.work_through(desk, steps, soon(1_000), {}, lambda line: None)
    assert [name for name, _ in asked] == ["chapters", "tables", "simclr"], "which has had its share in the first call"


def test_a_step_that_lacks_something_is_skipped_with_a_sentence(tmp_path: Path) -> None:
    (step,) = choose(["operator"])
    lacking = replace(step, needs=("no_such_module",))
    assert "no_such_module can't be imported here" in drive.unable(lacking, True, {})
    nowhere = {"SSLBOOK_DATA": str(tmp_path)}
    assert "CIFAR-10 is not here" in drive.unable(step, False, nowhere)
    assert drive.unable(step, True, nowhere) == ""
    (tmp_path / "no_such_module.py").touch()
    path = list(sys.path)
    assert drive.unable(lacking, True, {"PYTHONPATH": str(tmp_path)}) == ""
    assert sys.path == path
    (outcome,) = drive.work_through(Desk(tmp_path, "cpu", True), [lacking], soon(60), {}, lambda line: None)
    assert outcome.status == drive.SKIPPED


def test_a_step_that_fails_says_where_its_log_is(tmp_path: Path) -> None:
    """The folder lacks what says how to work in it."""
    (outcome,) = drive.work_through(Desk(tmp_path, "cpu", True), choose(["tables"]), soon(300), {}, lambda line: None)
    assert outcome.status == drive.FAILED
    assert MACHINE in outcome.why
    assert "tables.log" in outcome.why


def test_an_item_that_fails_keeps_none_from_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []

    def do(item: str) -> None:
        if item == "two":
            raise ValueError("not today")
        done.append(item)

    with pytest.raises(RuntimeError, match=r"two \(ValueError: not today\)"):
        work.all_of(["one", "two", "three"], do)
    assert done == ["one", "three"]
    assert "not today" in capsys.readouterr().err
    work.all_of(["four"], do)


def test_failed_tests_are_counted_and_named(tmp_path: Path) -> None:
    written = tmp_path / "tests.xml"
    written.write_text(
        '<testsuites><testsuite tests="5" failures="1" errors="1" skipped="1"><testcase classname="a" name="b"><failure/>'
        '</testcase><testcase classname="c" name="d"><error/></testcase><testcase classname="e" name="f"/></testsuite></testsuites>'
    )
    assert work.counts(written) == {"passed": 2, "failed": 2, "skipped": 1, "failures": ["a::b", "c::d"]}


def test_every_step_of_the_plan_can_be_done() -> None:
    assert [step.name for step in STEPS] == list(work.WORK)
    assert sum(step.tiny for step in STEPS) < 180


def status(arguments: list[str]) -> int | str | None:
    """A command's exit status, however it ends."""
    try:
        return cli.main(arguments)
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "chapter"], "--only: got 'chapter'; did you mean chapters?"),
        (["--minutes", "0"], "is not a number of minutes above 0"),
        (["--minutes", "soon"], "is not a number of minutes above 0"),
        (["--merge", "nowhere"], "neither a folder of sslbook gpu nor its results.zip"),
        (["--merge", "."], "is no folder of sslbook gpu"),
        (["--bundle", "there", "--python", "snake"], "a version such as 3.12 is needed"),
        (["--device", "cpu", "--tiny", "--from", "nowhere"], "holds no wheels and no images"),
    ],
)
def test_bad_input_gets_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status(["gpu", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_no_gpu_gets_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cli.main(["gpu"]) == 2
    assert "no GPU: torch" in capsys.readouterr().err
    assert cli.main(["gpu", "--plan"]) == 0
    told = capsys.readouterr()
    assert "no GPU: torch" in told.err
    assert "The plan" in told.out


def test_the_plan_is_told_with_its_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gpu", "--device", "cpu", "--plan", "--minutes", "10"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {step.name}" in out for step in STEPS)
    assert "not all of it in this time" in out


def test_a_folder_goes_on_with_its_own_work_alone(tmp_path: Path) -> None:
    here = find("cpu")
    Desk(tmp_path, "cpu", True).begin(here)
    Desk(tmp_path, "cpu", True).begin(here)
    assert opened(tmp_path) == Desk(tmp_path, "cpu", True)
    with pytest.raises(InputError, match="tiny was True and is False"):
        Desk(tmp_path, "cpu", False).begin(here)
    with pytest.raises(InputError, match=r"torch was .* and is 2\.99"):
        Desk(tmp_path, "cpu", True).begin(replace(here, torch="2.99"))


# -- the bundle -------------------------------------------------------------------------------------------------------


def test_the_bundle_has_what_executes_a_chapter_and_not_what_is_there() -> None:
    found = bundle.closure("3.12")
    assert {"papermill", "jupytext", "ipykernel", "ipython", "nbclient", "pyzmq", "pytest"} <= set(found)
    assert not {"torch", "numpy", "scipy", "matplotlib", "scikit-learn", "aiohttp", "debugpy"} & set(found)
    assert "colorama" not in found, "which Windows alone needs"


def test_pip_is_asked_for_wheels_of_that_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(command)
        (tmp_path / "wheels" / "papermill-2.6.0-py3-none-any.whl").write_bytes(b"x" * 10)
        return subprocess.CompletedProcess(command, len(asked) - 1)

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(datasets, "data_folder", lambda: tmp_path / "nothing")
    told = list(bundle.write(tmp_path, python="3.13"))
    assert "1 wheels for Python 3.13" in told[0]
    assert "No images" in told[1]
    words = asked[0]
    assert words[words.index("--python-version") + 1] == "3.13"
    assert [word for word in words if word.startswith("papermill==")]
    with pytest.raises(InputError, match="pip could not fetch"):
        list(bundle.write(tmp_path, python="3.13"))
    monkeypatch.setattr(bundle, "WHOLE", 5)
    asked.clear()
    with pytest.raises(InputError, match="too large to be carried"):
        list(bundle.write(tmp_path, python="3.13"))


def test_images_travel_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, pieces = datasets.LAYOUTS["cifar10"][0], tmp_path / "bundle" / "images"
    source = tmp_path / "data" / layout.folder
    source.mkdir(parents=True)
    for number, name in enumerate(layout.md5):
        (source / name).write_bytes(os.urandom(1000 + number))
    monkeypatch.setattr(datasets, "data_folder", lambda: tmp_path / "data")
    monkeypatch.setattr(bundle, "PIECE", 1500)
    said = bundle._images(pieces)
    parts = sorted(pieces.iterdir())
    assert f"{len(parts)} pieces" in said
    assert max(part.stat().st_size for part in parts) <= 1500
    half = {"one": parts[::2], "two": parts[1::2]}  # as two calls would bring them
    for name, some in half.items():
        (tmp_path / name / "images").mkdir(parents=True)
        for part in some:
            shutil.copy(part, tmp_path / name / "images")
    out = tmp_path / "out"
    variables, said = bundle.unpack([tmp_path / "one"], out)
    assert "SSLBOOK_DATA" not in variables
    assert said == ["No images: 3 of 5 pieces of cifar-10-batches-py.tar.gz are here"]
    for _ in range(2):
        variables, said = bundle.unpack([tmp_path / "two"], out)
        assert variables["SSLBOOK_DATA"] == str(out / "images")
        assert said == []
    for name in layout.md5:
        assert (out / "images" / layout.folder / name).read_bytes() == (source / name).read_bytes()
    damaged = tmp_path / "damaged" / "images"
    damaged.mkdir(parents=True)
    for part in parts:
        (damaged / part.name).write_bytes(part.read_bytes()[:-10])
    with pytest.raises(InputError, match="make no archive"):
        bundle.unpack([damaged.parent], tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere" / "images").exists()
    (damaged / f"{bundle.IMAGES}.1-of-1").touch()
    with pytest.raises(InputError, match="pieces of two archives"):
        bundle.unpack([damaged.parent], tmp_path / "elsewhere")


def wheel(folder: Path, name: str, tag: str = "py3-none-any") -> Path:
    """A wheel of one empty module."""
    path = folder / "wheels" / f"{name}-1.0-{tag}.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", "")
        file.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


def test_what_is_missing_is_taken_from_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    wheel(tmp_path / "bundle", "not_here")
    wheel(tmp_path / "bundle", "filelock")  # which torch brings
    for _ in range(2):
        variables, said = bundle.unpack([tmp_path / "bundle"], tmp_path / "out")
        assert variables == {"PYTHONPATH": str(tmp_path / "out" / "site")}
        assert said[0].startswith("1 of 2 packages taken")
        assert said[1].startswith("No images: 0 of the pieces")
        assert [path.name for path in (tmp_path / "out" / "site").glob("*.py")] == ["not_here.py"]


def test_a_bundle_for_another_python_is_refused(tmp_path: Path) -> None:
    wheel(tmp_path / "bundle", "not_here", "cp36-cp36m-win32")
    with pytest.raises(InputError, match="is not for this Python"):
        bundle.unpack([tmp_path / "bundle"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_step_has_is_recorded_though_an_item_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the seconds of all items, also those of earlier calls; and nothing is written for nothing."""
    desk = Desk(tmp_path, "cpu", False)

    def asked(bench: str, training: str, stage: str, *options: str) -> dict[str, Any]:
        if stage != "step":
            raise RuntimeError("no compiler")
        return {"rows": []}

    desk.keep("bench", "epoch", {"seconds": 40.0, "rows": []})
    monkeypatch.setattr(work, "_asked", asked)
    with pytest.raises(RuntimeError, match="no compiler"):
        work.bench(desk)
    record = recorded("gpu-bench", folder=desk.records)
    assert set(record.values) == {"epoch", "step"}
    assert record.provenance.seconds == pytest.approx(40.0, abs=1)
    with pytest.raises(RuntimeError):
        work.tables(desk)
    assert [path.name for path in desk.records.iterdir()] == ["gpu-bench.json"]
