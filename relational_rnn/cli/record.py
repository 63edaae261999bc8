"""rmc record: a film of a trained agent, or of a random player."""

from __future__ import annotations

from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.play import game_options
from relational_rnn.cli.train import take_option, user_errors, whole_number

HELP = """\
usage: rmc record GAME PATH [--run SOURCE [--sampled]] [--seed N] [--episodes N]
                  [--frames N] [--mode NAME]

games: box-world, mini-pacman (its modes: regular, avoid, hunt, ambush, rush)
Films an agent on fresh levels of its own game: that of a run folder, with its
newest weights, or one in the package by its name (mini-pacman-full, say). It
takes the best action of every step, or with --sampled one drawn from its
policy. Without --run the player moves at random, and --mode chooses the game.
The film goes into PATH, a .gif, or an .mp4 (which needs ffmpeg), and ends after
--episodes (1) or --frames (600), whichever comes first. A file that exists is
not overwritten.
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
    rest, source = take_option(rest, "--run")
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
    if source is None and sampled:
        raise UsageError("--sampled needs --run: without it the player is random anyway")
    if source is not None and mode is not None:
        raise UsageError(f"--mode {mode!r} is not allowed with --run: a run has its own game")
    options = game_options(game, mode)

    from relational_rnn.environments.terminal import record

    with user_errors():
        options |= dict(seed=seed, episodes=episodes, max_frames=frames)
        if source is None:
            scores = record(game, path, **options)
        else:
            env, player = trained_player(game, source, greedy=not sampled, seed=seed)
            scores = record(env, path, policy=player, **options | {"seed": FILM_SEED + seed})
    said = ", ".join(f"{score:g}" for score in scores) or "none, no episode ended"
    print(f"film: {path}; scores: {said}")
    return 0


def trained_player(game: str, source: str, *, greedy: bool, seed: int):
    """The game of a run folder or of a model in the package, and its agent, on the CPU."""
    import torch

    from relational_rnn.agents.playing import NetworkPlayer
    from relational_rnn.experiments import load_experiment
    from relational_rnn.pretrained import load

    network, config, about = load(source)
    if game != about["experiment"]:
        raise UsageError(f"{source} is of experiment {about['experiment']!r}, not {game!r}")
    env = load_experiment(game).make_env(config.task, torch.device("cpu"))
    return env, NetworkPlayer(network, greedy=greedy, seed=seed)
