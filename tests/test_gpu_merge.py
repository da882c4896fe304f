"""What comes back from a GPU finds its place in the book: records, numbers, and the line in the table of machines."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from sslbook import cli
from sslbook.arguments import InputError
from sslbook.bench.gpu import merge, report
from sslbook.bench.gpu.desk import MACHINE, Desk
from sslbook.bench.gpu.machine import find
from sslbook.book import machines, regression
from sslbook.book.layout import Book
from sslbook.book.values import Number
from sslbook.chapters.training.presets import sheets
from sslbook.chapters.training.runs import lines, origins, recorded_values, run_of
from sslbook.records import recorded, save_record
from sslbook.training.runs import checkpoints

NUMBER = Number("gap", 0.5, "A-Thm1", "good", "paper", 0, "cuda", "a GPU", "float64", 0.1, {"torch": "2.11"}, rtol=1e-3)


def desk_of(folder: Path, *found: Number, tests: tuple[int, int] = (30, 0)) -> Desk:
    desk = Desk(folder, "cuda", False)
    desk.begin(replace(find("cpu"), device="cuda", name="NVIDIA H100", driver="580.1", cuda="13.0", torch="2.11.0"))
    agreed = sum(number == NUMBER for number in found)
    values = {"scale": "paper", "seconds": 1.0, "error": "", "compared": len(found), "agreed": agreed}
    values["numbers"] = [number.to_json() for number in found]
    desk.keep("chapters", "good", values)
    desk.keep("chapters", "bad", {"scale": "paper", "seconds": 1.0, "error": "a cell failed"})
    desk.keep("tests", "gpu", {"passed": tests[0], "failed": tests[1], "skipped": 0, "failures": []})
    return desk


def table_record(desk: Desk, seed: int, accuracy: float, *, epochs: tuple[int, ...] = (100,)) -> str:
    """A record of A-Tab2 with one run; returns the name of its folder."""
    run = run_of("cifar10-simclr-nce", seed=seed, epochs=epochs[-1])
    rows = [{"epoch": epoch, "linear": accuracy, "linear_best": accuracy + 0.01} for epoch in epochs]
    runs = {run.folder(Path()).name: {"seed": seed, "seconds": 3.0 * epochs[-1], "device": "a GPU", "rows": rows}}
    save_record("A-Tab2", recorded_values(sheets()["A-Tab2"], runs), seeds=[seed], seconds=300.0, folder=desk.records)
    return run.folder(Path()).name


@pytest.fixture
def book(tmp_path: Path) -> Book:
    root = tmp_path / "book"
    (root / "data" / "results").mkdir(parents=True)
    return Book(root)


def test_records_of_a_table_are_joined_run_by_run(book: Book, tmp_path: Path) -> None:
    names = []
    for seed, accuracy in ((1, 0.8), (2, 0.9), (2, 0.85)):
        desk = desk_of(tmp_path / f"{seed}-{accuracy}")
        names.append(table_record(desk, seed, accuracy))
        merge.merge(desk, book, update=False)
    joined = recorded("A-Tab2", folder=book.results)
    assert set(joined["runs"]) == set(names)
    assert joined.provenance.seeds == (1, 2)
    assert joined.provenance.seconds == 600.0
    cell = next(cell for cell in joined["cells"] if cell["final"])
    assert cell["epochs"] == 100
    assert cell["final"] == [0.8, 0.85], "the newer of two runs of one name"
    assert sum(bool(cell["final"]) for cell in joined["cells"]) == 1


def test_a_longer_run_keeps_what_a_shorter_one_lacks(book: Book, tmp_path: Path) -> None:
    """A run of 100 epochs is the beginning of one of 500, and has its name."""
    long = desk_of(tmp_path / "long")
    name = table_record(long, 1, 0.8, epochs=(100, 300, 500))
    short = desk_of(tmp_path / "short")
    assert table_record(short, 1, 0.7) == name
    merge.merge(long, book, update=False)
    merge.merge(short, book, update=False)
    joined = recorded("A-Tab2", folder=book.results)
    cells = {cell["epochs"]: cell["final"] for cell in joined["cells"] if cell["final"]}
    assert cells == {100: [0.7], 300: [0.8], 500: [0.8]}
    assert joined["runs"][name]["seconds"] == 1500.0
    assert joined.provenance.seconds == 1500.0


def test_a_run_that_diverged_is_in_the_record(book: Book, tmp_path: Path) -> None:
    run = run_of("cifar10-simclr-nce", seed=1, epochs=100)
    run.folder(tmp_path).mkdir(parents=True)
    (run.folder(tmp_path) / checkpoints.DIVERGED).write_text("diverged at step 12\n")
    runs = origins([run], tmp_path)
    assert runs == {run.folder(tmp_path).name: {"seed": 1, "diverged": "diverged at step 12", "rows": []}}
    found = lines(sheets()["A-Tab2"], [1], tmp_path / "elsewhere", recorded=runs)
    assert [line.diverged for line in found if line.cell.preset == run.name] == [("diverged at step 12",)] * 3
    assert not any(line.best for line in found)


def test_another_record_takes_the_old_ones_place(book: Book, tmp_path: Path) -> None:
    for value in (1, 2):
        desk = desk_of(tmp_path / str(value))
        save_record("training-operator-full", {"trace": value}, seeds=[value], seconds=1, folder=desk.records)
        merge.merge(desk, book, update=False)
    assert recorded("training-operator-full", folder=book.results)["trace"] == 2


def test_numbers_that_differ_are_told_and_stay_unless_asked(book: Book, tmp_path: Path) -> None:
    regression.accept(book, "good", "paper", [NUMBER])
    held = book.expected("good", "paper").read_text()
    close, far = replace(NUMBER, value=0.5001), replace(NUMBER, value=0.6)
    same = merge.merge(desk_of(tmp_path / "same", close), book, update=True)
    assert not same.differing
    assert book.expected("good", "paper").read_text() == held
    desk = desk_of(tmp_path / "moved", far, replace(NUMBER, name="more"))
    merged = merge.merge(desk, book, update=False)
    assert len(merged.differing) == 2
    assert merged.differing[0].startswith("good: gap: moved to 0.6")
    assert book.expected("good", "paper").read_text() == held
    (entry,) = machines.entries(book)
    assert (entry.numbers, entry.agreed, entry.chapters) == (2, 0, 1)
    assert merge.merge(desk, book, update=True).differing == merged.differing
    assert not merge.merge(desk, book, update=False).differing
    (entry,) = machines.entries(book)
    assert (entry.numbers, entry.agreed) == (2, 0), "when it ran"


def test_a_number_that_is_gone_is_told_and_counts_among_none(book: Book, tmp_path: Path) -> None:
    regression.accept(book, "good", "paper", [NUMBER, replace(NUMBER, name="gone")])
    merged = merge.merge(desk_of(tmp_path / "desk", NUMBER), book, update=False)
    assert [sentence.partition(" it was")[0] for sentence in merged.differing] == ["good: gone: missing;"]
    (entry,) = machines.entries(book)
    assert (entry.numbers, entry.agreed) == (1, 1)


def test_the_table_of_machines_has_a_line_a_run(book: Book, tmp_path: Path) -> None:
    assert machines.table([]) == "No machine has been entered yet."
    merge.merge(desk_of(tmp_path / "one", NUMBER, tests=(29, 1)), book, update=True)
    (entry,) = machines.entries(book)
    machines.add(book, replace(entry, date="2027-01-01", passed=None, failed=None, name="AMD EPYC", driver=""))
    text = machines.table(machines.entries(book))
    first, second = text.splitlines()[2:]
    assert first.startswith("| AMD EPYC | 2027-01-01")
    assert first.endswith("| – |")
    assert second.startswith("| NVIDIA H100 |")
    assert "torch 2.11.0, 580.1 CUDA 13.0" in second
    assert "| 1 of 1 in 1 chapter | 29 passed, 1 failed |" in second
    page = book.root / "chapters" / "reproduce.md"
    assert machines.pages(book) == {}
    page.parent.mkdir()
    page.write_text(f"# Title\n\n{machines.PLACE}\n")
    assert machines.pages(book)["chapters/reproduce"] == f"# Title\n\n{text}\n"
    machines.path(book).write_text('[{"name": "no more"}]')
    with pytest.raises(InputError, match="not a table of machines"):
        machines.entries(book)


def test_an_archive_is_as_good_as_its_folder(
    book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = desk_of(tmp_path / "desk", NUMBER)
    table_record(desk, 1, 0.8)
    (desk.runs / "run").mkdir(parents=True)
    (desk.runs / "run" / "step-000000001.pt").write_bytes(b"large")
    archive = report.pack(desk)
    monkeypatch.setattr("sslbook.bench.gpu.show.find_book", lambda: book)
    regression.accept(book, "good", "paper", [NUMBER])
    assert cli.main(["gpu", "--merge", str(archive)]) == 0
    assert "Written: data/results/A-Tab2.json" in capsys.readouterr().out
    assert recorded("A-Tab2", folder=book.results)["runs"]
    regression.accept(book, "good", "paper", [replace(NUMBER, value=0.7)])
    assert cli.main(["gpu", "--merge", str(archive)]) == 1
    assert "--update-expected takes those of the GPU" in capsys.readouterr().out


def test_a_damaged_folder_changes_nothing(book: Book, tmp_path: Path) -> None:
    desk = desk_of(tmp_path / "desk", NUMBER)
    table_record(desk, 1, 0.8)
    (desk.records / "Z-Tab1.json").write_text("{")
    with pytest.raises(InputError, match=r"Z-Tab1\.json: not a recorded run"):
        merge.merge(desk, book, update=True)
    (desk.records / "Z-Tab1.json").unlink()
    for damaged in (book.expected("good", "paper"), machines.path(book), book.results / "A-Tab2.json"):
        damaged.parent.mkdir(exist_ok=True)
        damaged.write_text("{")
        with pytest.raises(InputError, match=damaged.name):
            merge.merge(desk, book, update=True)
        damaged.unlink()
    assert not list(book.results.iterdir())
    assert not machines.path(book).exists()
    desk.path("chapters", "good").write_text("[]")
    with pytest.raises(InputError, match=r"good\.json must hold a JSON object"):
        desk.done("chapters")


def test_an_archive_can_write_nowhere_else(tmp_path: Path) -> None:
    archive = tmp_path / "results.zip"
    facts = json.dumps(asdict(find("cpu")) | {"tiny": False})
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(MACHINE, facts)
        file.writestr("../../outside.json", "{}")
        file.writestr("/absolute.json", "{}")
    with merge.desk_in(archive) as desk:
        inside = {path.name for path in desk.folder.rglob("*.json")}
        assert inside == {MACHINE, "outside.json", "absolute.json"}
    assert not list(tmp_path.rglob("outside.json"))


def test_a_table_says_what_each_item_gave(tmp_path: Path) -> None:
    from sslbook.bench.gpu.plan import STEPS

    desk = desk_of(tmp_path, NUMBER)
    desk.keep(
        "chapters", "good", {"error": "", "compared": 3, "agreed": 2, "differences": ["gap: moved"], "seconds": 2.0}
    )
    row: dict[str, Any] = {"linear": 0.8, "linear_best": 0.81, "epoch": 100, "seconds": 301.2}
    desk.keep("simclr", "cifar10-simclr-nce-s1", row)
    desk.keep("byol", "cifar10-byol-s1", {"diverged": "the loss is nan at step 3"})
    desk.keep("tables", "A-Tab6", {"seconds": 71.0})
    desk.keep(
        "operator", "epoch-2", {"values": {"runs": {"info_nce": [[{"names": ["conv1", "fc"]}]]}}, "seconds": 100.0}
    )
    rows = [{"what": "images", "value": 1234.5, "unit": "/s", "verdict": "ok"}]
    rows.append({"what": "share", "value": None, "unit": "%", "verdict": ""})
    desk.keep("bench", "step", {"rows": rows})
    text = report.table(desk, STEPS)
    for expected in (
        "30 passed, 0 failed, 0 skipped",
        "2 of 3 numbers as expected",
        "gap: moved",
        "failed after 1 s: a cell failed",
        "linear 80.00 % (best 81.00 %) after 100 epochs, 301 s",
        "the loss is nan at step 3",
        "71 s (bar: 60 s, MISSED)",
        "2 layers, 100 s",
        "images: 1234 /s ok",
        "share: no number %",
    ):
        assert expected in text
    assert report.wrong(desk) == ["chapters: bad failed"]
    desk.keep("tests", "gpu", {"passed": 29, "failed": 1, "skipped": 0, "failures": ["test_x"]})
    assert report.wrong(desk) == ["tests: 1 failed", "chapters: bad failed"]
