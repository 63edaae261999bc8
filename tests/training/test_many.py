"""What is seen of several trainings; tests/cli/test_sections.py runs them."""

import json
import subprocess
import sys

from rich.console import Console

from relational_rnn.training import many
from relational_rnn.training.many import Board, Job, Outcome, Running


def job(tmp_path, name="rmc", steps=2_000):
    return Job(name, tmp_path / name, [], steps)


def write(path, *lines, end="\n"):
    path.mkdir(exist_ok=True)
    (path / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + end)


def ended(one, code):
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(int(sys.argv[1]))", str(code)])
    process.wait()
    one.log.write_text("an earlier sitting\n" + "".join(f"line {i}\n" for i in range(20)))
    return Running(one, process, len("an earlier sitting\n") if code else 0)


def test_the_newest_values(tmp_path, monkeypatch):
    assert many.newest(tmp_path / "rmc") is None
    first = {"step": 10, "steps_per_second": 5.0, "loss": 2.0, "eval_accuracy": 0.5}
    write(tmp_path / "rmc", first, {"step": 20, "steps_per_second": 6.0, "loss": 1.0})
    found = many.newest(tmp_path / "rmc")
    assert found == {"step": 20, "steps_per_second": 6.0, "loss": 1.0, "eval_accuracy": 0.5}
    write(tmp_path / "rmc", first, {"step": 20, "steps_per_second": 6.0}, end="")  # not yet whole
    assert many.newest(tmp_path / "rmc") == first
    (tmp_path / "rmc" / "metrics.jsonl").write_text("[3]\n{broken\n7\n")
    assert many.newest(tmp_path / "rmc") is None
    write(tmp_path / "rmc", first, {"step": "20", "steps_per_second": "fast", "loss": None, "accuracy": []})
    assert many.newest(tmp_path / "rmc") == first
    monkeypatch.setattr(many, "TAIL", 200)  # the first line looked at is cut off
    write(tmp_path / "rmc", *({"step": n, "steps_per_second": 1.0, "loss": 0.125} for n in range(1000)))
    assert many.newest(tmp_path / "rmc") == {"step": 999, "steps_per_second": 1.0, "loss": 0.125}


def test_a_running_training_in_words(tmp_path):
    assert many.described(job(tmp_path)) == ("0 of 2,000", "", "starting")
    write(tmp_path / "rmc", {"step": 1000, "steps_per_second": 10.0, "loss": 0.5, "accuracy": 0.812})
    said = many.described(job(tmp_path))
    assert said == ("1,000 of 2,000", "1:40 left", "loss 0.5  accuracy 81.2 %  10 steps/s")


def test_the_board_on_a_terminal(tmp_path):
    console = Console(force_terminal=True, width=80, height=20, record=True, color_system=None)
    names = ("rmc", "a-core-with-a-long-name")
    running = [Running(job(tmp_path, name), None, 0) for name in names]
    values = {"loss": 0.5, "accuracy": 0.812, "stage": 3, "eval_accuracy": 0.8}
    write(tmp_path / "rmc", {"step": 1000, "steps_per_second": 10.0, **values})
    board = Board(5, console)
    console.print(board.table(running, 3))
    lines = console.export_text().splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[:7] == ["rmc", "1,000", "of", "2,000", "1:40", "left", "loss"]
    assert lines[1].split()[-1] == "starting"
    assert lines[2].startswith("0 of 5 ended, 3 waiting")
    board.stopping(True, "time is up")
    console.print(board.table(running, 3))
    assert "time is up: waiting for checkpoints" in console.export_text()


def test_how_trainings_end(tmp_path, capsys):
    outcome, board = Outcome(), Board(6, Console(width=80))
    for name, code, over in (
        *(("good", 0, False), ("bad", 1, False), ("told", 143, True), ("starting", 130, True)),
        *(("bad-then", 1, True), ("by-someone", 143, False)),
    ):
        one = ended(job(tmp_path, name), code)
        board.ended(one, many.note(one, outcome, over))
    assert outcome.finished == ["good"]
    assert outcome.stopped == ["told", "starting"]
    assert outcome.failed == {"bad": 1, "bad-then": 1, "by-someone": 143}
    said = capsys.readouterr().out
    assert "bad: failed with exit status 1" in said
    assert said.count("| line 19") == 3
    assert "earlier" not in said
    assert "line 9\n" not in said  # the last ten only
