"""rmc record: a film of a trained agent, or of a random player."""

from __future__ import annotations

from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.play import game_options, whole_number
from relational_rnn.cli.train import take_option, user_errors

HELP = """\
usage: rmc record GAME PATH [--run FOLDER [--sampled]] [--seed N] [--episodes N] [--frames N] [--mode NAME]

games: box-world, mini-pacman (its modes: regular, avoid, hunt, ambush, rush)
Films the agent of a run folder, with its newest weights, on fresh levels of the run's own game: the best
action of every step, or with --sampled one drawn from its policy. Without --run the player moves at random,
and --mode chooses the game. The film goes into PATH, a .gif, or an .mp4 (which needs ffmpeg), and ends after
--episodes (1) or --frames (600), whichever comes first. A file that exists is not overwritten.
"""
FILM_SEED = 3 * 2**30  # films show levels no training seed reaches


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    rest, seed = take_option(arguments, "--seed", default="0")
    rest, episodes = take_option(rest, "--episodes", default="1")
    rest, frames = take_option(rest, "--frames", default="600")
    rest, mode = take_option(rest, "--mode")
    rest, folder = take_option(rest, "--run")
    sampled = "--sampled" in rest
    rest = [argument for argument in rest if argument != "--sampled"]
    if len(rest) != 2:
        options = "--run, --sampled, --seed, --episodes, --frames, --mode"
        raise UsageError(f"rmc record takes a game and a path, got {rest}; options: {options}")
    game, path = rest[0], Path(rest[1])
    seed = whole_number("--seed", seed)
    episodes, frames = whole_number("--episodes", episodes, 1), whole_number("--frames", frames, 1)
    if path.exists():
        raise UsageError(f"{path} exists already; choose another path")
    if not path.parent.is_dir():
        raise UsageError(f"folder {path.parent} does not exist")
    if folder is None and sampled:
        raise UsageError("--sampled needs --run: without it the player is random anyway")
    if folder is not None and mode is not None:
        raise UsageError(f"--mode {mode!r} is not allowed with --run: a run has its own game")
    options = game_options(game, mode)

    from relational_rnn.environments.terminal import record

    with user_errors():
        options |= dict(seed=seed, episodes=episodes, max_frames=frames)
        if folder is None:
            scores = record(game, path, **options)
        else:
            env, player = trained_player(game, folder, greedy=not sampled, seed=seed)
            scores = record(env, path, policy=player, **options | {"seed": FILM_SEED + seed})
    said = ", ".join(f"{score:g}" for score in scores) or "none, no episode ended"
    print(f"film: {path}; scores: {said}")
    return 0


def trained_player(game: str, folder: str, *, greedy: bool, seed: int):
    """The run's game and its agent, on the CPU."""
    import torch

    from relational_rnn.agents.playing import NetworkPlayer
    from relational_rnn.experiments import open_run
    from relational_rnn.training.weights import load_weights

    run, experiment, config = open_run(folder)
    if game != experiment.NAME:
        raise UsageError(f"run folder {folder} is of experiment {experiment.NAME!r}, not {game!r}")
    env, network = experiment.make_player(config, torch.device("cpu"))
    load_weights(run, network)
    return env, NetworkPlayer(network.eval(), greedy=greedy, seed=seed)
