"""Playing in the terminal, and films of a policy playing.

`play` draws a game with coloured blocks and reads arrow keys or WASD; `record` writes a GIF or an MP4.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text
from torch import Tensor

from relational_rnn.environments.box_world import AGENT, BoxWorld
from relational_rnn.environments.box_world_levels import GEM, KEY, NUM_COLOURS
from relational_rnn.environments.mini_pacman import MiniPacman

GAMES = {"box-world": BoxWorld, "mini-pacman": MiniPacman}

# (observation [B, ...], position [B, 2], last action [B], last reward [B], whether an episode begins [B])
# -> actions [B]. A recurrent policy keeps its own state and clears it where an episode begins; the last
# action is then 0. agents/playing.py makes one of a trained network.
Policy = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

DIRECTION_KEYS = {"w": "up", "a": "left", "s": "down", "d": "right", " ": "stay", ".": "stay"}
ESCAPES = {"A": "up", "B": "down", "C": "right", "D": "left"}  # what ends the arrow keys, after ESC [
ACTIONS = {
    "box-world": {"up": 0, "down": 1, "left": 2, "right": 3},
    "mini-pacman": {"stay": 0, "right": 1, "up": 2, "left": 3, "down": 4},
}


def make_game(game: str, **options) -> MiniPacman | BoxWorld:
    if game not in GAMES:
        raise ValueError(f"game is {game!r}; allowed: {', '.join(GAMES)}")
    return GAMES[game](**options)


def play(
    game: str,
    *,
    seed: int | None = None,
    keys: Iterable[str] | None = None,
    console: Console | None = None,
    **options,
) -> float:
    """Play one episode in the terminal -> its score. Arrow keys or WASD move, space waits, q gives up.

    `options` go to the game (`view="viewport"`, `mode="hunt"`, `num_forward=(0,)`, ...; the view is the full
    one unless asked for). `keys` plays those instead of reading the keyboard: "up", "down", "left", "right",
    "stay" or "quit".
    """
    env = make_game(game, **{"view": "full"} | options)
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    state = env.reset(1, generator)
    console = console or Console()
    letters = console.color_system != "truecolor"  # else keys that do not fit a lock would look as if
    message = "arrows or WASD move" + (", space waits" if game == "mini-pacman" else "") + ", q gives up"
    source = _keyboard() if keys is None else contextlib.nullcontext(iter(keys))
    with source as pressed, _live(_screen(env, state, message, letters), console) as live:
        for key in pressed:
            if key == "quit":
                message = "given up"
                break
            if key not in ACTIONS[game]:
                continue
            actions = torch.tensor([ACTIONS[game][key]])
            state, step = env.step(state, actions, generator, auto_reset=False)
            if step.done:
                solved = game == "box-world" and step.reward > 0  # Mini Pacman only ever ends with death
                message = "out of time" if step.truncated else "solved!" if solved else "game over"
                break
            live.update(_screen(env, state, message, letters), refresh=True)
        live.update(_screen(env, state, message, letters), refresh=True)
    return float(state.episode_return)


def _live(screen: Text, console: Console) -> Live:
    if console.no_color or console.color_system is None:
        raise ValueError(
            "the game is drawn in colours, and this output has none: NO_COLOR is set, TERM is dumb or "
            "unknown, or it is no terminal"
        )
    lines = screen.plain.split("\n")
    width = len(lines[0])  # of the room; the text below it is folded where it has to be
    height = sum(-(-len(line) // max(width, console.width)) for line in lines)
    if console.width < width or console.height < height:  # it would be cut, and the player with it
        raise ValueError(
            f"the terminal has {console.width} columns and {console.height} rows; allowed: {width} and "
            f"{height}, or more"
        )
    return Live(screen, console=console, auto_refresh=False)


def _screen(env, state, message: str, letters: bool = False) -> Text:
    """The game as blocks two characters wide, in the colours the agent sees; of BoxWorld with `letters` for
    them, where the terminal has fewer."""
    image = env.observe(state)[0, :3]  # [3, h, w]
    rows = (image.permute(1, 2, 0) * 255).round().int().tolist()
    letters = letters and isinstance(env, BoxWorld)
    names = iter(map(_letter, env.shown(state)[0].tolist()) if letters else itertools.repeat(" "))
    text = Text()
    for row in rows:
        for red, green, blue in row:
            text.append(f"{next(names)} ", style=f"bold black on rgb({red},{green},{blue})")
        text.append("\n")
    text.append(f"score {float(state.episode_return):g}   step {int(state.steps)}")
    if isinstance(env, MiniPacman):
        text.append(f"   level {int(state.level)}   power {int(state.power)}")
    else:
        held = (env._palette[:, int(state.held)] * 255).round().int().tolist()
        text.append("   key ")
        name = _letter(int(state.held)) if letters else " "
        text.append(f"{name} ", style=f"bold black on rgb({held[0]},{held[1]},{held[2]})")
    return text.append(f"\n{message}")


def _letter(code: int) -> str:
    """Of what a cell of BoxWorld holds: a to t for the colours of keys and locks, * the gem, @ the agent."""
    if code < KEY or code == AGENT:
        return {GEM: "*", AGENT: "@"}.get(code, " ")
    return chr(ord("a") + (code - KEY) % NUM_COLOURS)


@contextlib.contextmanager
def _keyboard() -> Iterator[Iterator[str]]:
    """Key presses, read one at a time without waiting for Enter."""
    if sys.stdin is None or not sys.stdin.isatty():  # None: it was closed, as with <&-
        raise ValueError("standard input is not a terminal; run this in one")
    if sys.platform == "win32":
        import msvcrt

        arrows = {"H": "up", "P": "down", "M": "right", "K": "left"}
        yield _names(lambda: msvcrt.getwch(), lambda: arrows.get(msvcrt.getwch(), ""), ("\x00", "\xe0"))
        return
    import os
    import select
    import signal
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    read = lambda: os.read(terminal, 1).decode(errors="replace")  # noqa: E731

    def arrow() -> str:
        # ESC alone is the key itself; an arrow sends more characters at once: [ A, and with Ctrl, Alt or
        # Shift [ 1 ; 5 A, whose letter must not be taken for one of WASD.
        if not select.select([terminal], [], [], 0.05)[0]:
            return "quit"
        character = read()
        if character == "\x1b":  # some terminals put one more before, for Alt
            return arrow()
        if character not in ("[", "O"):  # Alt and another key
            return ""
        character = read()
        while "0" <= character <= "?":
            character = read()
        return ESCAPES.get(character, "")

    # A shell whose job is stopped with Ctrl-Z takes the terminal back, and returns it as the shell has it.
    continued = signal.signal(signal.SIGCONT, lambda *_: tty.setcbreak(terminal))
    ended = signal.signal(signal.SIGTERM, _end)  # or it would be left without echo and cursor
    try:
        tty.setcbreak(terminal)
        yield _names(read, arrow, ("\x1b",))
    finally:
        signal.signal(signal.SIGCONT, continued)
        signal.signal(signal.SIGTERM, ended)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _end(number: int, frame) -> None:
    raise KeyboardInterrupt(number)


def _names(read: Callable[[], str], special: Callable[[], str], prefixes: tuple[str, ...]) -> Iterator[str]:
    """Characters -> "up", "down", "left", "right", "stay", "quit", others dropped; ends with the input."""
    while character := read():
        if character in prefixes:
            name = special()
        else:
            name = "quit" if character in "qQ" else DIRECTION_KEYS.get(character.lower(), "")
        if name:
            yield name


def record(
    game: str | BoxWorld | MiniPacman,
    path: str | Path,
    *,
    policy: Policy | None = None,
    seed: int = 0,
    episodes: int = 1,
    max_frames: int = 600,
    frames_per_second: int = 8,
    cell_pixels: int = 24,
    **options,
) -> list[float]:
    """Film `episodes` episodes of a policy (by default a random one) -> their scores.

    `game`: its name, to which `options` go, or the game itself. The ending of `path` chooses the form: .gif,
    or .mp4 (which needs the program ffmpeg). A film ends after `max_frames`; an episode cut short by that has
    no score.
    """
    path = Path(path)
    if path.suffix not in (".gif", ".mp4"):
        raise ValueError(f"path is {str(path)!r}; allowed endings: .gif, .mp4")
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:  # now, not when all games have been played
        raise ValueError(f"path is {str(path)!r}, and .mp4 needs ffmpeg, which is not installed; use .gif")
    least = {"episodes": episodes, "max_frames": max_frames, "frames_per_second": frames_per_second}
    for name, number in least.items():
        if number < 1:
            raise ValueError(f"{name} is {number}; it must be at least 1")
    if options and not isinstance(game, str):
        raise ValueError(f"{next(iter(options))!r} is not allowed with a game that is made already")
    env = make_game(game, **options) if isinstance(game, str) else game
    generator = torch.Generator(device=env.device).manual_seed(seed)
    frames, scores = [], []
    state = env.reset(1, generator)
    action = torch.zeros(1, dtype=torch.long, device=env.device)
    reward, first = torch.zeros(1, device=env.device), torch.ones(1, dtype=torch.bool, device=env.device)
    while len(frames) < max_frames and len(scores) < episodes:
        frames.append(env.render(state, 0, cell_pixels))
        if policy is None:
            action = torch.randint(env.num_actions, (1,), generator=generator, device=env.device)
        else:
            action = policy(env.observe(state), env.position(state), action, reward, first)
        state, step = env.step(state, action, generator)
        reward, first = step.reward, step.done
        if step.done:
            scores.append(float(step.episode_return))
            frames += [env.render(step.final, 0, cell_pixels)] * frames_per_second  # rest for a second
            action, reward = torch.zeros_like(action), torch.zeros_like(reward)
    (_write_gif if path.suffix == ".gif" else _write_mp4)(path, frames, frames_per_second)
    return scores


def _write_gif(path: Path, frames: list[np.ndarray], frames_per_second: int) -> None:
    from PIL import Image

    # One palette for the whole film keeps it small and free of flicker: the colours that fill most of some
    # frame, unmixed, since what fits a lock is told by its colour alone.
    images, most = [Image.fromarray(frame) for frame in frames], Counter()
    for image in images:
        most |= Counter({colour: pixels for pixels, colour in image.getcolors(image.width * image.height)})
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour, _ in most.most_common(256) for part in colour])
    images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    images[0].save(path, save_all=True, append_images=images[1:], duration=1000 // frames_per_second, loop=0)


def _write_mp4(path: Path, frames: list[np.ndarray], frames_per_second: int) -> None:
    from matplotlib.animation import FFMpegWriter
    from matplotlib.figure import Figure

    # H.264 wants even sides, so the last row or column of an odd one comes twice. A pixel is an inch: at 100
    # to the inch some sizes are rounded down, and pictures squeezed into that.
    frames = [np.pad(f, [(0, f.shape[0] % 2), (0, f.shape[1] % 2), (0, 0)], mode="edge") for f in frames]
    height, width = frames[0].shape[:2]
    figure = Figure(figsize=(width, height), dpi=1)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    shown = axes.imshow(frames[0])
    writer = FFMpegWriter(fps=frames_per_second)
    with writer.saving(figure, str(path), dpi=1):
        for frame in frames:
            shown.set_data(frame)
            writer.grab_frame()
