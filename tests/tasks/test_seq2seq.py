import pytest
import torch

from relational_rnn.cores.deep_lstm import DeepLSTM
from relational_rnn.cores.dnc import DNC
from relational_rnn.cores.entnet import EntNet
from relational_rnn.cores.lstm import LSTM
from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.tasks import learning_to_execute as lte
from relational_rnn.tasks.lte_curriculum import Curriculum
from relational_rnn.tasks.seq2seq import Seq2Seq

CORES = {
    "rmc": lambda: RelationalMemory(45, 2, 4, 2, gate_style="memory"),
    "lstm": lambda: LSTM(45, 8),
    "deep": lambda: DeepLSTM(45, 8),
    "dnc": lambda: DNC(45, 9, 4, 3, 2, hidden_size=8),
    "feedforward dnc": lambda: DNC(45, 9, 4, 3, controller="feedforward", hidden_size=8),
    "entnet": lambda: EntNet(45, 2, 4),
    "henaff": lambda: EntNet(45, 2, 4, style="henaff"),
}
REGIMES = ["teacher", "scheduled", "non-auto-regressive"]


def setting(core="lstm", regime="non-auto-regressive", batch_size=4, **options):
    torch.manual_seed(0)
    task = lte.LearningToExecute("program", 2, 2)
    curriculum = Curriculum(2, 2)
    batch = task.batch(batch_size, generator=torch.Generator().manual_seed(1), curriculum=curriculum)
    return Seq2Seq(CORES[core](), regime=regime, hidden=(16, 16), **options), task, batch


@pytest.mark.parametrize("core", CORES)
def test_encoder_state_is_that_of_each_samples_own_length(core):
    model, _, batch = setting(core)
    state = model.encode(batch.inputs, batch.input_lengths)
    assert len(set(batch.input_lengths.tolist())) > 1
    for b, length in enumerate(batch.input_lengths.tolist()):
        _, alone = model.encoder(model.one_hot(batch.inputs[:length, b]))
        pairs = zip(flat(state), flat(alone), strict=True)
        assert all(torch.allclose(ours[b], theirs, atol=1e-6) for ours, theirs in pairs)


@pytest.mark.parametrize("core", CORES)
def test_reading_and_writing_in_one_go_is_one_after_the_other(core):
    model, task, batch = setting(core)
    state = model.encode(batch.inputs, batch.input_lengths)
    outputs, _ = model.decoder(torch.zeros(task.output_steps, 4, 45), state)
    logits = model(batch.inputs, batch.input_lengths, task.output_steps)
    torch.testing.assert_close(logits, model.logits(outputs))


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("decoder", [None, LSTM(45, 8)])
def test_cores_can_stay_out_of_autocast(regime, decoder):
    torch.manual_seed(0)
    task = lte.LearningToExecute("program", 2, 2)
    batch = task.batch(4, generator=torch.Generator().manual_seed(1))
    model = Seq2Seq(LSTM(45, 8), decoder, regime, hidden=(), core_autocast=False)
    seen = []
    model.head[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        for targets in (None, batch.targets):
            logits = model(
                batch.inputs, batch.input_lengths, task.output_steps, targets=targets, feedback=1.0
            )
            assert logits.dtype == torch.bfloat16
    assert set(seen) == {torch.float32}


def flat(state):
    return [tensor for part in state for tensor in flat(part)] if isinstance(state, tuple) else [state]


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("regime", REGIMES)
def test_every_core_trains_in_every_regime(core, regime):
    model, task, batch = setting(core, regime)
    logits = model(batch.inputs, batch.input_lengths, task.output_steps, targets=batch.targets, feedback=0.5)
    assert logits.shape == (task.output_steps, 4, 45)
    lte.loss(logits, batch).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_teacher_forcing_reads_the_targets_one_step_late():
    model, task, batch = setting(regime="teacher")
    state = model.encode(batch.inputs, batch.input_lengths)
    outputs, _ = model.decoder(model.one_hot(batch.decoder_inputs), state)
    logits = model(batch.inputs, batch.input_lengths, task.output_steps, targets=batch.targets)
    torch.testing.assert_close(logits, model.logits(outputs))


def test_scheduled_lies_between_teacher_forcing_and_evaluation():
    model, task, batch = setting(regime="scheduled")
    run = (batch.inputs, batch.input_lengths, task.output_steps)
    evaluated = model(*run)
    torch.testing.assert_close(model(*run, targets=batch.targets, feedback=1.0), evaluated)
    forced = model(*run, targets=batch.targets, feedback=0.0)
    model.regime = "teacher"
    torch.testing.assert_close(forced, model(*run, targets=batch.targets))
    assert not torch.allclose(forced, evaluated)


@pytest.mark.parametrize("regime", REGIMES)
def test_evaluation_feeds_back_predictions_and_the_first_step_knows_no_target(regime):
    model, task, batch = setting(regime=regime)
    run = (batch.inputs, batch.input_lengths, task.output_steps)
    logits = model(*run)
    state = model.encode(*run[:2])
    x = torch.zeros(4, 45) if regime == "non-auto-regressive" else model.one_hot(torch.full((4,), 44))
    for t in range(task.output_steps):
        output, state = model.decoder.step(x, state)
        torch.testing.assert_close(logits[t], model.logits(output))
        if regime != "non-auto-regressive":
            x = model.one_hot(logits[t].argmax(-1))


@pytest.mark.parametrize("regime", ["teacher", "scheduled"])
def test_in_eval_mode_targets_are_not_read(regime):
    model, task, batch = setting(regime=regime)
    model.eval()
    run = (batch.inputs, batch.input_lengths, task.output_steps)
    torch.testing.assert_close(model(*run, targets=batch.targets, feedback=0.0), model(*run), rtol=0, atol=0)
    model.train()
    assert not torch.equal(model(*run, targets=batch.targets, feedback=0.0), model(*run))


def test_non_auto_regressive_ignores_targets():
    model, task, batch = setting()
    run = (batch.inputs, batch.input_lengths, task.output_steps)
    torch.testing.assert_close(model(*run, targets=batch.targets), model(*run))


def test_padding_does_not_matter():
    model, task, batch = setting()
    longer = torch.cat([batch.inputs, torch.full((3, 4), 7)])
    first, second = (model(x, batch.input_lengths, task.output_steps) for x in (batch.inputs, longer))
    torch.testing.assert_close(first, second)


def test_separate_decoder():
    model, task, batch = setting(decoder=LSTM(45, 8))
    assert model.decoder is not model.encoder
    assert sum(p.numel() for p in model.encoder.parameters()) * 2 < sum(p.numel() for p in model.parameters())
    assert model(batch.inputs, batch.input_lengths, task.output_steps).shape == (task.output_steps, 4, 45)


def test_a_small_model_learns_to_copy():
    torch.manual_seed(0)
    task = lte.LearningToExecute("copy", 2)
    model = Seq2Seq(LSTM(45, 64), hidden=(64,))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(250):
        batch = task.batch(64, generator=generator)
        logits = model(batch.inputs, batch.input_lengths, task.output_steps)
        optimizer.zero_grad()
        lte.loss(logits, batch).backward()
        optimizer.step()
    assert lte.accuracy(logits, batch) > 0.95


def test_bad_arguments():
    with pytest.raises(ValueError, match="regime='free'"):
        Seq2Seq(LSTM(45, 8), regime="free")
    with pytest.raises(ValueError, match=r"encoder input=\(44,\)"):
        Seq2Seq(LSTM(44, 8))
    with pytest.raises(ValueError, match="decoder state"):
        Seq2Seq(LSTM(45, 8), LSTM(45, 9))
    with pytest.raises(ValueError, match="batch_first"):
        Seq2Seq(LSTM(45, 8, batch_first=True))
    model, task, batch = setting()
    with pytest.raises(ValueError, match=r"ids=\[45\]"):
        model(torch.full_like(batch.inputs, 45), batch.input_lengths, task.output_steps)
    with pytest.raises(ValueError, match=r"lengths=\[0"):
        model(batch.inputs, torch.zeros_like(batch.input_lengths), task.output_steps)
    with pytest.raises(ValueError, match=r"lengths dtype=torch\.float32"):
        model(batch.inputs, batch.input_lengths.float(), task.output_steps)
    with pytest.raises(ValueError, match="steps=0"):
        model(batch.inputs, batch.input_lengths, 0)
    with pytest.raises(ValueError, match=r"allowed: \[S, B\] and \[B\]"):
        model(batch.inputs, batch.input_lengths[:2], task.output_steps)
    with pytest.raises(ValueError, match="targets have shape"):
        model(batch.inputs, batch.input_lengths, task.output_steps, targets=batch.targets[:-1])
