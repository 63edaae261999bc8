"""What is exported: exact enough, complete, small enough, and nothing overwritten."""

import base64
import errno
import json
import shutil

import numpy as np
import pytest
import torch

from relational_rnn import pretrained
from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.environments.box_world import AGENT
from relational_rnn.experiments import nth_farthest
from relational_rnn.explorer import encoding, export, games, programs
from relational_rnn.explorer.memory import export_model
from relational_rnn.kernels.reference import Trace
from relational_rnn.tasks.lte_text import IDS, VOCABULARY, ZERO, encode
from tests.analysis.folders import write_run


def decoded_attention(trace: dict) -> np.ndarray:
    numbers = np.frombuffer(base64.b64decode(trace["attention"]), "<u2") / 65535
    keys = trace["slots"] + trace["inputs"]
    return numbers.reshape(trace["steps"], trace["blocks"], trace["heads"], trace["slots"], keys)


def parse(script: str) -> dict:
    assert script.startswith(export.PREFIX)
    return json.loads(script.removeprefix(export.PREFIX).rstrip(";\n"))


@pytest.mark.parametrize("shape", [(5, 7), (9,), (1, 3)])
def test_weights_are_rounded_to_a_65534th_of_their_row(shape):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3
    restored = encoding.restored(encoding.weights(tensor))
    rows = tensor if tensor.dim() == 2 else tensor[None]
    allowed = rows.abs().amax(1, keepdim=True) / 65534 * 1.01
    assert restored.shape == tensor.shape
    assert ((restored.reshape(rows.shape) - rows).abs() <= allowed).all()


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 3e4])
def test_float16_weights_stay_what_they_are(scale):
    halves = (
        (scale * torch.randn(3, 4, generator=torch.Generator().manual_seed(0))).clamp(-65504, 65504).half()
    )
    packed = encoding.weights(halves.float())
    assert "half" in packed
    assert torch.equal(encoding.restored(packed), halves.float())


def test_a_trace_is_the_core_s():
    core = RelationalMemory(3, mem_slots=4, head_size=5, num_heads=2, num_blocks=2, input_rows=6)
    before = core.initial_state(1)
    output, _, trace = core(torch.randn(7, 1, 6, 3), before, need_weights=True)
    memories = output[:, 0].unflatten(-1, (4, 10))
    packed = encoding.trace(Trace(*(part[:, 0] for part in trace)), memories, before[0])
    attention = decoded_attention(packed)
    assert attention.shape == (7, 2, 2, 4, 10)
    np.testing.assert_allclose(attention, trace.attention[:, 0, :, :, :4].detach(), atol=1e-5)
    np.testing.assert_allclose(packed["forgetGate"], trace.forget_gate[:, 0].mean(-1).detach(), atol=1e-5)
    first = (memories[0] - before[0]).square().mean(-1).sqrt()
    np.testing.assert_allclose(packed["change"][0], first.detach(), atol=1e-5)


def test_every_section_has_what_its_runs_gave(full_page):
    data = parse((full_page / export.DATA).read_text())
    assert [model["name"] for model in data["memory"]] == ["nth"]
    assert [game["name"] for game in data["games"]] == ["box", "pacman", "cells", "conv"]
    assert [model["name"] for model in data["programs"]] == ["lte", "scheduled", "scratchpad"]
    assert len(data["results"]["runs"]) == 8
    assert all(claim["outcomes"] == [] for claim in data["results"]["claims"])
    assert data["notices"] == []


def test_episodes_hang_together(full_page):
    box, pacman, cells, conv = parse((full_page / export.DATA).read_text())["games"]
    for game in (box, pacman, cells, conv):
        for episode in game["episodes"]:
            steps = episode["steps"]
            area = np.frombuffer(base64.b64decode(episode["cells"]), "u1").reshape(steps, game["rows"], -1)
            assert area.shape[2] == game["columns"]
            lists = [episode[k] for k in ("positions", "actions", "rewards", "values", "policy")]
            assert {len(each) for each in lists} == {steps}
            assert sum(episode["rewards"]) == pytest.approx(episode["return"], abs=1e-3)
            np.testing.assert_allclose(np.sum(episode["policy"], 1), 1, atol=1e-4)
            me = AGENT if game["game"] == "box-world" else 2
            assert [area[t, r, c] for t, (r, c) in enumerate(episode["positions"])] == [me] * steps
            if game is not conv:
                np.testing.assert_allclose(decoded_attention(episode["trace"]).sum(-1), 1, atol=1e-3)
    assert cells["episodes"][0]["trace"]["inputs"] == 25
    assert "trace" not in conv["episodes"][0]


def test_an_episode_s_values_and_attention_are_the_network_s(run_of):
    """Played again by the same seed, the core run over the whole episode at once gives the same numbers."""
    network, config, _ = pretrained.load_run(run_of("box"))
    env = export.game_of("box-world", config)
    told = games.export_episodes("box", env, network, episodes=1)["episodes"][0]
    seen = []
    features = network.features
    network.features = lambda inputs: seen.append(features(inputs)) or seen[-1]
    games.export_episodes("box", env, network, episodes=1)
    with torch.no_grad():
        output, _, trace = network.core(torch.stack(seen), need_weights=True)
        values = network.heads(output).value[:, 0]
    np.testing.assert_allclose(told["values"], values, atol=1e-4)
    np.testing.assert_allclose(decoded_attention(told["trace"]), trace.attention[:, 0, :, :, :4], atol=1e-4)


def test_a_scratchpad_is_shown_with_what_it_wrote_and_read(run_of, tmp_path):
    """Every digit that it read is the one it wrote a step before, marked by whether it is the true one."""
    data = export.collect([run_of("scratchpad")], weights=tmp_path)
    assert data["notices"] == []
    model, config, _ = pretrained.load_run(run_of("scratchpad"))
    model.encoder.backend = "reference"
    batch = config.samples.batch(6, generator=torch.Generator().manual_seed(programs.SEED))
    for b, sample in enumerate(data["programs"][0]["samples"]):
        steps = sample["steps"]
        assert "".join(symbol for symbol, kind, _ in steps if kind == programs.READ) == sample["text"]
        assert [kind for _, kind, _ in steps].count(programs.NOTHING) == 2  # one a level
        x = torch.zeros(len(steps), VOCABULARY)
        for t, (symbol, kind, _) in enumerate(steps):
            if kind != programs.NOTHING:
                x[t, IDS[symbol]] = 1.0
        with torch.no_grad():
            output, _, trace = model.encoder(x, need_weights=True)
            wrote = model.logits(output)[:, ZERO : ZERO + 10].argmax(-1).tolist()
        one = programs.one_of(batch, b)
        text = model.calculation.text(one.inputs, one.input_lengths)
        true = (model.calculation.symbols(one.steps, text)[:, 0] - ZERO).tolist()
        for t, (symbol, kind, _) in enumerate(steps):
            if kind in (programs.RIGHT, programs.WRONG):
                assert symbol == str(wrote[t - 1])
                assert kind == (programs.RIGHT if wrote[t - 1] == true[t - 1] else programs.WRONG)
        assert sample["trace"]["steps"] == len(steps) + len(sample["target"])
        shown = decoded_attention(sample["trace"])[: len(steps)]
        np.testing.assert_allclose(shown, trace.attention[:, :, :, : shown.shape[-2]], atol=1e-4)


@pytest.mark.parametrize("kind", ["lte", "scheduled"])
def test_programs_are_read_as_the_model_reads_them(run_of, full_page, kind):
    model, config, _ = pretrained.load_run(run_of(kind))
    exported = next(m for m in parse((full_page / export.DATA).read_text())["programs"] if m["name"] == kind)
    assert exported["task"] == config.task
    assert len(exported["samples"]) == 6
    for sample in exported["samples"]:
        text, target = sample["text"], sample["target"]
        assert target == (text if kind == "lte" else text[::-1])
        with torch.no_grad():
            ids = encode([text])
            logits = model(ids, torch.tensor([len(text)]), config.samples.output_steps)[: len(target), 0]
            _, _, trace = model.encoder(model.one_hot(ids), need_weights=True)
        likely = logits.softmax(-1).max(-1)
        assert sample["soFar"][-1] == "".join(row[0] for row in sample["likely"])
        np.testing.assert_allclose([row[0] for row in sample["chances"]], likely.values, atol=1e-4)
        attention = decoded_attention(sample["trace"])
        assert len(attention) == len(text) + len(target)
        np.testing.assert_allclose(attention[: len(text)], trace.attention[:, 0, :, :, :2], atol=1e-4)


def test_a_core_without_slots_gives_a_curve_and_a_note(run_of, tmp_path):
    data = export.collect([run_of("lstm")], weights=tmp_path)
    assert data["memory"] == []
    assert len(data["results"]["runs"][0]["points"]) >= 1
    assert data["notices"] == ["lstm: only its curve is shown; core lstm has no slots to look into"]


def test_damaged_lines_and_missing_weights_are_named(run_of, tmp_path):
    run = shutil.copytree(run_of("nth"), tmp_path / "hurt")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(["{oops\n", *lines]))
    for checkpoint in (run / "checkpoints").iterdir():
        checkpoint.unlink()
    assert len(export.collect([run], weights=tmp_path / "none")["memory"]) == 1  # the weights kept at the end
    (run / "weights.safetensors").unlink()
    data = export.collect([run], weights=tmp_path / "none")
    assert data["memory"] == []
    assert len(data["results"]["runs"][0]["points"]) >= 1
    assert "skipped 1 line of metrics.jsonl (line 1 is no JSON)" in data["notices"][0]
    assert "only its curve is shown" in data["notices"][1]
    assert "no checkpoint" in data["notices"][1]


def test_the_package_s_weights_come_first(run_of, tmp_path):
    pretrained.release(run_of("nth"), "small", samples=200, folder=tmp_path)
    data = export.collect([run_of("nth")], weights=tmp_path)
    assert [model["name"] for model in data["memory"]] == ["small", "nth"]
    assert 0 < data["memory"][0]["accuracy"] <= 1


def test_packaged_models_of_every_experiment_have_their_place(run_of, tmp_path):
    """One without slots has none, and is no reason to show no other."""
    for kind in ("lstm", "lte", "nth"):
        pretrained.release(run_of(kind), kind, samples=50, folder=tmp_path)
    data = export.collect([], weights=tmp_path)
    assert [model["name"] for model in data["memory"]] == ["nth"]
    assert [model["name"] for model in data["programs"]] == ["lte"]
    assert data["notices"] == ["lstm, in the package, is not shown: core lstm has no slots to look into"]


def test_a_model_the_page_cannot_compute_is_named(run_of, tmp_path, monkeypatch):
    def refuse(*_):
        raise ValueError("the page computes other cores only")

    monkeypatch.setattr(export, "export_model", refuse)
    pretrained.release(run_of("nth"), "small", samples=50, folder=tmp_path)
    data = export.collect([run_of("nth")], weights=tmp_path)
    assert data["memory"] == []
    assert data["notices"] == [
        "small, in the package, is not shown: the page computes other cores only",
        "nth: only its curve is shown; the page computes other cores only",
    ]


def test_the_curve_of_a_language_model_is_what_is_measured_on_the_way(tmp_path):
    """Not what is measured once, at the end, whichever the paper's number is of."""
    records = [{"step": step, "eval_valid_perplexity": 1000 / step} for step in (1, 2, 3)]
    records[-1] |= {"eval_full_valid_perplexity": 300.0, "eval_test_perplexity": 310.0}
    run = write_run(tmp_path / "run", records, "lm", "paper", data="/text")
    data = export.collect([run], weights=tmp_path / "none")
    (curve,) = data["results"]["runs"]
    assert curve["points"] == [[1, 1000], [2, 500], [3, 333.33333]]
    assert (curve["measure"], curve["unit"]) == ("validation perplexity", "perplexity")
    assert data["notices"] == ["run: only its curve is shown; lm has no section"]


def test_a_model_of_the_paper_s_size_is_under_six_megabytes():
    config = nth_farthest.paper()
    model = nth_farthest.make_problem(config, torch.device("cpu")).model
    data = {"memory": [export_model("paper", config.task, model)]}
    assert len(export.script(data)) < export.MAX_BYTES


def test_only_an_earlier_export_is_replaced(tmp_path, empty_page):
    data = parse((empty_page / export.DATA).read_text())
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "data.js").write_text("my own")
    with pytest.raises(ValueError, match="mine exists and is no earlier export"):
        export.write(data, mine)
    assert [path.name for path in mine.iterdir()] == ["data.js"]
    assert (mine / "data.js").read_text() == "my own"
    export.write({**data, "made": "first"}, tmp_path / "new")
    export.write({**data, "made": "second"}, tmp_path / "new")
    assert parse((tmp_path / "new" / "data.js").read_text())["made"] == "second"


def test_data_that_cannot_be_written_leaves_no_page(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        export.write({"made": float("nan")}, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_an_error_in_a_line_and_can_be_tried_again(tmp_path, monkeypatch):
    def full(source, target, **_):
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(OSError, match="No space left") as error:
            export.write({}, tmp_path / "page")
    assert error.value.errno == errno.ENOSPC  # by which the command line knows it for no fault of its own
    export.write({}, tmp_path / "page")
    assert (tmp_path / "page" / "js" / "main.js").is_file()


def test_the_page_loads_every_script_it_has():
    text = (export.PAGE / "index.html").read_text()
    for path in sorted([*export.PAGE.glob("js/*.js"), *export.PAGE.glob("css/*.css")]):
        assert f'"{path.parent.name}/{path.name}"' in text
        assert len(path.read_text().splitlines()) <= 350
        assert "innerHTML" not in path.read_text()
