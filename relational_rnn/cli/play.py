"""rmc play: a game in the terminal."""

from __future__ import annotations

from relational_rnn.cli import UsageError
from relational_rnn.cli.train import take_option, user_errors, whole_number

HELP = """\
usage: rmc play GAME [--seed N] [--view full|viewport] [--mode NAME]

games: box-world, mini-pacman (its modes: regular, avoid, hunt, ambush, rush)
Plays one episode in the terminal and prints its score. Arrow keys or WASD move,
q gives up. The view is the full one unless asked for; viewport is the 5 x 5
window the paper's agents see.
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    rest, seed = take_option(arguments, "--seed")
    rest, view = take_option(rest, "--view", default="full")
    rest, mode = take_option(rest, "--mode")
    if len(rest) != 1:
        raise UsageError(f"rmc play takes one game, got {rest}; options: --seed, --view, --mode")
    seed = None if seed is None else whole_number("--seed", seed)
    options = game_options(rest[0], mode)

    from relational_rnn.environments.terminal import play

    with user_errors():
        score = play(rest[0], seed=seed, view=view, **options)
    print(f"score: {score:g}")
    return 0


def game_options(game: str, mode: str | None) -> dict[str, str]:
    if mode is None:
        return {}
    if game == "box-world":
        raise UsageError(f"--mode {mode!r} is not allowed with box-world; only mini-pacman has modes")
    return {"mode": mode}
