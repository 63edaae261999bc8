"""rmc record: a film of a random player."""

from __future__ import annotations

from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.play import game_options, whole_number
from relational_rnn.cli.train import take_option, user_errors

HELP = """\
usage: rmc record GAME PATH [--seed N] [--episodes N] [--frames N] [--mode NAME]

games: box-world, mini-pacman (its modes: regular, avoid, hunt, ambush, rush)
Films a player that moves at random into PATH, a .gif, or an .mp4 (which needs ffmpeg). It ends after
--episodes (1) or --frames (600), whichever comes first. A file that exists is not overwritten.
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    rest, seed = take_option(arguments, "--seed", default="0")
    rest, episodes = take_option(rest, "--episodes", default="1")
    rest, frames = take_option(rest, "--frames", default="600")
    rest, mode = take_option(rest, "--mode")
    if len(rest) != 2:
        raise UsageError(
            f"rmc record takes a game and a path, got {rest}; options: --seed, --episodes, --frames, --mode"
        )
    game, path = rest[0], Path(rest[1])
    seed = whole_number("--seed", seed)
    episodes, frames = whole_number("--episodes", episodes, 1), whole_number("--frames", frames, 1)
    if path.exists():
        raise UsageError(f"{path} exists already; choose another path")
    if not path.parent.is_dir():
        raise UsageError(f"folder {path.parent} does not exist")
    options = game_options(game, mode)

    from relational_rnn.environments.terminal import record

    with user_errors():
        scores = record(game, path, seed=seed, episodes=episodes, max_frames=frames, **options)
    said = ", ".join(f"{score:g}" for score in scores) or "none, no episode ended"
    print(f"film: {path}; scores: {said}")
    return 0
