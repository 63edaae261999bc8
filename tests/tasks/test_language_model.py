"""The language model: what it predicts, its dropouts and penalties, its state; scores, generation."""

import math

import numpy as np
import pytest
import torch

from relational_rnn import DNC, LSTM, DeepLSTM, RelationalMemory
from relational_rnn.cores.base import first_tensor
from relational_rnn.tasks.language_dynamic import Dynamic, dynamic_score
from relational_rnn.tasks.language_evaluation import (
    frequency_kinds,
    score,
    score_frequencies,
    score_kinds,
    score_unrolls,
)
from relational_rnn.tasks.language_generation import generate, suggest
from relational_rnn.tasks.language_model import Dropout, LanguageModel
from relational_rnn.tasks.language_modeling import Windows

CPU = torch.device("cpu")
V, D = 50, 16
CORES = {
    "rmc": lambda: RelationalMemory(D, 1, 5, 4),
    "rmc without projection": lambda: RelationalMemory(D, 1, 8, 2),
    "lstm": lambda: LSTM(D, 15),
    "deep lstm": lambda: DeepLSTM(D, 7),
}


def make(core="rmc", **options):
    torch.manual_seed(0)
    model = LanguageModel(CORES[core](), V, **options)
    torch.nn.init.normal_(model.embedding.weight, std=0.5)
    torch.nn.init.normal_(model.softmax_bias if model.adaptive is None else model.adaptive.head.weight)
    return model


def window(steps=9, streams=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(V, (2, steps, streams), generator=generator)


@pytest.fixture
def text():
    return np.random.default_rng(0).integers(0, V, 997).astype(np.uint16)


# ------------------------------------------------------------------ the model


@pytest.mark.parametrize("core", CORES)
def test_the_softmax_reads_the_embedding(core):
    """By hand: embedding, core, projection, products with all embeddings, bias."""
    model = make(core)
    inputs, targets = window()
    state = model.initial_state(3)
    hidden, _ = model.core(model.embedding.weight[inputs], state)
    assert isinstance(model.projection, torch.nn.Identity) == (core == "rmc without projection")
    logits = model.projection(hidden) @ model.embedding.weight.T + model.softmax_bias
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    losses = model(inputs, targets, state)
    torch.testing.assert_close(losses.nats, wanted)
    torch.testing.assert_close(losses.total, wanted)
    features, _ = model.features(inputs, state)
    torch.testing.assert_close(model.log_probabilities(features), logits.log_softmax(-1))


@pytest.mark.parametrize("dropped", [0.0, 0.3])
def test_a_core_that_keeps_its_precision_under_autocast(dropped):
    """Its outputs and state are float32 to the last bit, where autocast's bf16 would round them."""
    kept = make("lstm", core_autocast=False, dropout=Dropout(recurrent=dropped))
    rounded = make("lstm", dropout=Dropout(recurrent=dropped))
    inputs, _ = window()

    def read(model):
        torch.manual_seed(2)  # the same weights are dropped
        return model.read(inputs, model.initial_state(3))

    plain = read(rounded)
    with torch.autocast("cpu", torch.bfloat16):
        exact, other = read(kept), read(rounded)
    for a, b in zip((exact[0], *exact[1]), (plain[0], *plain[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert (other[0].float() - plain[0]).abs().max() > 1e-4


@pytest.mark.parametrize("core", CORES)
def test_two_windows_are_one_long_unroll(core):
    model = make(core)
    inputs, targets = window(steps=10)
    whole = model(inputs, targets, model.initial_state(3))
    first = model(inputs[:4], targets[:4], model.initial_state(3))
    second = model(inputs[4:], targets[4:], first.state)
    assert not first_tensor(first.state).requires_grad  # gradients end at the window
    torch.testing.assert_close((4 * first.nats + 6 * second.nats) / 10, whole.nats)


@pytest.mark.parametrize("core", CORES)
def test_every_parameter_learns(core):
    model = make(core, dropout=Dropout(0.1, 0.2, 0.2, 0.2), activation_penalty=1.0, change_penalty=1.0)
    model(*window(), model.initial_state(3)).total.backward()
    for name, parameter in model.named_parameters():
        assert not parameter.requires_grad or parameter.grad.abs().sum() > 0, name


def test_penalties_by_hand():
    model = make(activation_penalty=2.0, change_penalty=3.0)
    inputs, targets = window()
    outputs, _ = model.read(inputs, model.initial_state(3))
    change = outputs[1:] - outputs[:-1]
    losses = model(inputs, targets, model.initial_state(3))
    wanted = losses.nats + 2 * (outputs**2).mean() + 3 * (change**2).mean()
    torch.testing.assert_close(losses.total, wanted)


def test_the_adaptive_softmax_gives_probabilities():
    model = make(cutoffs=(10, 30))
    inputs, targets = window()
    features, _ = model.features(inputs, model.initial_state(3))
    log_probabilities = model.log_probabilities(features)
    torch.testing.assert_close(log_probabilities.exp().sum(-1), torch.ones(9, 3))
    wanted = -log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(model.cross_entropy(features, targets), wanted)
    torch.testing.assert_close(model.cross_entropy(features, targets, "mean"), wanted.mean())
    targets[0] = -100
    torch.testing.assert_close(model.cross_entropy(features, targets, "mean"), wanted[1:].mean())


# ------------------------------------------------------------------ dropouts


def test_nothing_is_dropped_in_eval_mode():
    model = make(dropout=Dropout(0.5, 0.5, 0.5, 0.5, softmax=0.5)).eval()
    inputs, targets = window()
    plain = make()
    state = model.initial_state(3)
    assert torch.equal(model(inputs, targets, state).nats, plain(inputs, targets, state).nats)


def test_locked_dropout_drops_the_same_features_at_every_step():
    x = torch.ones(6, 40, D, dtype=torch.float64)
    model = make(dropout=Dropout(input=0.25))
    dropped = model._drop(x, 0.25)
    assert torch.equal(dropped, dropped[:1].expand_as(dropped))
    assert set(dropped.unique().tolist()) == {0.0, 1 / 0.75}
    assert not torch.equal(dropped[0, 0], dropped[0, 1])  # every stream loses others
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.08)
    free = make(dropout=Dropout(input=0.25, locked=False))._drop(x, 0.25)
    assert not torch.equal(free[0], free[1])


def test_the_softmax_reads_features_with_gaps():
    """By hand: the gaps come after the projection, the same ones in training's loss and in `features`."""
    model, plain = make(dropout=Dropout(softmax=0.5)), make()
    inputs, targets = window(steps=5, streams=40)
    state = model.initial_state(40)
    torch.manual_seed(4)
    features, _ = model.features(inputs, state)
    ratio = features / plain.features(inputs, state)[0]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))  # locked
    assert set(ratio.round(decimals=4).unique().tolist()) == {0.0, 2.0}
    assert (ratio == 0).float().mean().item() == pytest.approx(0.5, abs=0.1)
    torch.manual_seed(4)
    nats = model(inputs, targets, state).nats
    torch.testing.assert_close(nats, plain.cross_entropy(features, targets, "mean"))


def test_word_dropout_drops_all_occurrences_of_a_word():
    model = make(dropout=Dropout(word=0.5))
    inputs, _ = window(steps=40)
    ratio = model._embed(inputs) / model.embedding.weight[inputs]
    kept = {word: set() for word in inputs.unique().tolist()}
    for word, value in zip(inputs.flatten().tolist(), ratio[..., 0].flatten().tolist(), strict=True):
        kept[word].add(round(value, 4))
    assert all(values in ({0.0}, {2.0}) for values in kept.values())
    assert len({tuple(values) for values in kept.values()}) == 2


@pytest.mark.parametrize(
    ("core", "names"),
    [
        ("rmc", {"blocks.0.qkv.weight", "mlp.0.weight", "mlp.1.weight", "gate_from_memory.weight"}),
        ("lstm", {"lstm.weight_hh_l0"}),
        ("deep lstm", {"layers.0.lstm.weight_hh_l0", "layers.1.lstm.weight_hh_l0"}),
    ],
)
def test_recurrent_dropout_drops_weights_on_the_state(core, names):
    model = make(core, dropout=Dropout(recurrent=0.5))
    assert set(model.recurrent_names) == names
    before = {name: p.clone() for name, p in model.core.named_parameters()}
    model(*window(), model.initial_state(3)).nats.backward()
    for name, parameter in model.core.named_parameters():
        assert torch.equal(parameter, before[name])  # they are only put aside
        if name in names:  # about half of them had no part in the window, and so have no gradient
            assert 0.3 < (parameter.grad == 0).float().mean() < 0.8
    other = make(core)
    assert model(*window(), model.initial_state(3)).nats != other(*window(), other.initial_state(3)).nats


def test_recurrent_dropout_of_another_core():
    with pytest.raises(ValueError, match="recurrent dropout of a DNC is not allowed; allowed: of Relat"):
        LanguageModel(DNC(D, 8, 4, 3), V, dropout=Dropout(recurrent=0.1))
    model = LanguageModel(DNC(D, 8, 4, 3), V)  # any core will do otherwise
    assert model(*window(), model.initial_state(3)).nats.isfinite()


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Dropout(word=1.0), "word=1.0 is not allowed; allowed: 0 or more, less than 1"),
        (lambda: LanguageModel(LSTM(4, 4), 1), "vocabulary_size=1"),
        (lambda: LanguageModel(LSTM(4, 4), 9, change_penalty=-1), "change_penalty=-1"),
        (lambda: LanguageModel(LSTM(4, 4), 9, cutoffs=(5, 3)), r"cutoffs=\(5, 3\).*rising.*1 to 8"),
        (
            lambda: LanguageModel(LSTM(12, 4), 9, cutoffs=(2, 4, 6)),
            r"cutoffs=\(2, 4, 6\) is not allowed; allowed: at most 1 of an embedding of 12",
        ),
        (lambda: Dynamic(decay=2), "decay=2"),
    ],
)
def test_wrong_arguments(make_it, message):
    with pytest.raises(ValueError, match=message):
        make_it()


# ------------------------------------------------------------------ scores


@pytest.mark.parametrize("unroll", [None, 1, 100])
def test_a_uniform_model_scores_the_size_of_the_vocabulary(text, unroll):
    model = make().double().eval()
    torch.nn.init.zeros_(model.embedding.weight)
    torch.nn.init.zeros_(model.softmax_bias)
    found = score(model, text, device=CPU, unroll=unroll)
    assert found.tokens == 997
    assert found.perplexity == pytest.approx(V, rel=1e-12)


@pytest.mark.parametrize("core", CORES)
def test_one_unroll_is_one_window_over_everything(text, core, monkeypatch):
    monkeypatch.setattr("relational_rnn.tasks.language_evaluation.STEPS", 64)  # state goes from part to part
    model = make(core).double().eval()
    (inputs, targets) = Windows(text, 1, len(text), every_token=True)[0]
    wanted = model(inputs, targets, model.initial_state(1)).nats.item()
    assert score(model, text, device=CPU).nats / 997 == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("unroll", "tokens"), [(7, 1 << 16), (100, 1 << 16), (30, 64)])
def test_unrolls_begin_with_the_initial_state(text, monkeypatch, unroll, tokens):
    monkeypatch.setattr("relational_rnn.tasks.language_evaluation.STEPS", 16)
    monkeypatch.setattr("relational_rnn.tasks.language_evaluation.TOKENS", tokens)
    model = make().double().eval()
    (inputs, targets) = Windows(text, 1, len(text), every_token=True)[0]
    nats = 0.0
    for start in range(0, 997, unroll):
        part = slice(start, start + unroll)
        mean = model(inputs[part], targets[part], model.initial_state(1)).nats.item()
        nats += mean * len(inputs[part])
    assert score(model, text, device=CPU, unroll=unroll).nats == pytest.approx(nats, rel=1e-12)
    assert score_unrolls(model, text, [unroll], device=CPU)[unroll] == math.exp(
        score(model, text, device=CPU, unroll=unroll).nats / 997
    )


def test_words_by_their_frequency_in_training(text):
    training = np.repeat([0, 1, 2, 3, 4], [10_001, 10_000, 1_000, 999, 1])
    kinds = frequency_kinds(training, V)
    assert kinds[:6].tolist() == [0, 1, 1, 2, 2, 2]
    model = make().double().eval()
    parts = score_kinds(model, text, kinds, device=CPU)
    whole = score(model, text, device=CPU)
    assert sum(part.nats for part in parts) == pytest.approx(whole.nats)
    table = score_frequencies(model, text, training, device=CPU)
    assert [row["tokens"] for row in table.values()] == [part.tokens for part in parts] + [997]
    assert table[">10K"]["tokens"] == (text == 0).sum()
    # By hand: the first kind is word 0 alone.
    inputs, targets = Windows(text, 1, len(text), every_token=True)[0]
    features, _ = model.features(inputs, model.initial_state(1))
    own = model.cross_entropy(features, targets)[targets == 0]
    assert table[">10K"]["perplexity"] == pytest.approx(own.mean().exp().item())


def test_dynamic_evaluation_learns_on_the_way_and_leaves_no_trace():
    """A text that repeats itself and that the model has never seen."""
    text = np.tile(np.arange(20), 30).astype(np.uint16)
    model = make().eval()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    fixed = score(model, text, device=CPU).perplexity
    still = dynamic_score(model, text, text, Dynamic(learning_rate=0), device=CPU)
    assert still.tokens == 600
    assert still.perplexity == pytest.approx(fixed, rel=1e-5)
    learned = dynamic_score(model, text, text, Dynamic(learning_rate=3e-3), device=CPU).perplexity
    assert learned < 0.7 * fixed
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert not model.training


@pytest.mark.parametrize("core", ["rmc", "lstm", "deep lstm"])
def test_dynamic_evaluation_in_bf16_reads_with_the_weights_it_has_learned(core):
    text = np.tile(np.arange(20), 20).astype(np.uint16)
    model, settings = make(core).eval(), Dynamic(learning_rate=3e-3)
    wanted = dynamic_score(model, text, text, settings, device=CPU).perplexity
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        fixed = score(model, text, device=CPU).perplexity
        found = dynamic_score(model, text, text, settings, device=CPU).perplexity
        assert score(model, text, device=CPU).perplexity == fixed
    assert found == pytest.approx(wanted, rel=0.05)  # with the old weights it is off by 9 % at least


def test_dynamic_evaluation_after_a_short_training_text(text):
    model = make().eval()
    assert dynamic_score(model, text, text[:7], Dynamic(), device=CPU).perplexity > 1


# ------------------------------------------------------------------ generation


def test_generation_follows_the_model():
    model = make().eval()
    best = suggest(model, [5, 6], 3)
    features, _ = model.features(torch.tensor([[1], [5], [6]]), model.initial_state(1))
    chances = model.log_probabilities(features[-1, 0]).exp()
    assert [word for word, _ in best] == chances.topk(3).indices.tolist()
    assert best[0][1] == pytest.approx(chances.max().item(), rel=1e-5)
    greedy = list(generate(model, [5, 6], length=4, temperature=0))
    assert greedy[0] == best[0][0]
    assert greedy[1] == suggest(model, [5, 6, greedy[0]], 1)[0][0]  # what it wrote, it has read
    assert list(generate(model, [5, 6], length=4, top_k=1)) == greedy
    likeliest = {word for word, _ in best}
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        assert next(generate(model, [5, 6], length=1, top_k=3, generator=generator)) in likeliest
    assert greedy[0] not in list(generate(model, [5, 6], length=20, temperature=0, never=[greedy[0]]))


def test_no_more_than_k_words_are_drawn_where_several_are_equally_likely():
    model = make().eval()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)  # a uniform model
    generator = torch.Generator().manual_seed(0)
    for k in (1, 3, V, 2 * V):
        drawn = set(generate(model, [], length=20 * min(k, V), top_k=k, generator=generator))
        assert len(drawn) == min(k, V)


def test_generation_with_an_adaptive_softmax():
    model = make(cutoffs=(10, 30)).eval()
    best = suggest(model, [5, 6], V)
    assert sum(chance for _, chance in best) == pytest.approx(1)
    assert list(generate(model, [5, 6], length=1, temperature=0)) == [best[0][0]]


def test_seeds_and_temperatures():
    model = make().eval()

    def text(seed, **options):
        generator = torch.Generator().manual_seed(seed)
        return list(generate(model, [3], length=20, generator=generator, **options))

    assert text(1) == text(1) != text(2)
    assert text(1, temperature=1e-4) == text(2, temperature=1e-320) == text(3, temperature=0)
    assert len(text(1)) == 20
    assert text(1, temperature=5.0) != text(1)
    wrong = [dict(temperature=-1.0), dict(temperature=float("inf")), dict(top_k=0)]
    for options in (*wrong, dict(never=[V]), dict(never=range(V))):
        with pytest.raises(ValueError, match="is not allowed; allowed:"):
            text(0, **options)
    message = rf"=\[-1, {V}\] is not allowed; allowed: ids from 0 to {V - 1}"
    with pytest.raises(ValueError, match=f"prompt{message}"):
        next(generate(model, [-1, 3, V], length=1))
    with pytest.raises(ValueError, match=f"prefix{message}"):
        suggest(model, [-1, 3, V], 1)
    with pytest.raises(ValueError, match=f"count={V + 1} is not allowed; allowed: 1 to {V}"):
        suggest(model, [], V + 1)
