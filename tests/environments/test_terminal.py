"""Playing with given keys on a console that only records; films read back from disk."""

import io
import os
import re
import shutil
import signal
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from relational_rnn.environments import BoxWorld
from relational_rnn.environments.box_world import palette
from relational_rnn.environments.box_world_levels import KEY
from relational_rnn.environments.terminal import GAMES, _keyboard, _write_gif, play, record
from tests.environments.reference_box_world import read, solve

NAMES = ["up", "down", "left", "right"]


def recording_console():
    options = dict(force_terminal=True, color_system="truecolor", no_color=False)  # whatever NO_COLOR says
    return Console(file=io.StringIO(), width=120, **options)


def test_a_level_is_won_with_the_solvers_keys():
    state = BoxWorld(view="full").reset(1, torch.Generator().manual_seed(11))
    level = read(state.room[0].tolist())
    keys = [NAMES[a] for a in solve(level, divmod(int(state.agent), 14))]
    console = recording_console()
    score = play("box-world", seed=11, keys=keys, console=console)
    assert score == 10 + sum(thing[0] == "lock" and thing[2] == "way" for thing in level.values())
    shown = console.file.getvalue()
    assert "solved!" in shown
    assert "48;2;204;204;204" in shown  # the floor's grey


def test_pacman_never_solves_anything_even_if_he_eats_as_he_dies():
    console = recording_console()
    assert play("mini-pacman", seed=184, keys=["down"] * 12, console=console) > 0
    assert "step 4" in console.file.getvalue()
    assert "game over" in console.file.getvalue()
    assert "solved!" not in console.file.getvalue()


def test_without_colours_nothing_could_be_seen():
    """NO_COLOR, TERM=dumb or a pipe: the blocks would be blank."""
    colourful = dict(force_terminal=True, color_system="truecolor")
    for options in (colourful | dict(no_color=True), dict(color_system=None)):
        console = Console(file=io.StringIO(), width=120, **options)
        with pytest.raises(ValueError, match="drawn in colours, and this output has none"):
            play("box-world", seed=0, keys=["up", "quit"], console=console)
        assert console.file.getvalue() == ""


@pytest.mark.parametrize(
    ("game", "options"), [("mini-pacman", dict(mode="hunt")), ("box-world", dict(view="viewport"))]
)
def test_giving_up(game, options):
    console = recording_console()
    score = play(game, seed=0, keys=["right", "nonsense", "left", "quit", "left"], console=console, **options)
    assert isinstance(score, float)
    assert "given up" in console.file.getvalue()
    assert "step 2" in console.file.getvalue()


@pytest.fixture
def terminal(monkeypatch):
    """A pseudo terminal as standard input: (where keys are typed, the terminal)."""
    pty = pytest.importorskip("pty", reason="needs a pseudo terminal")
    main, side = pty.openpty()
    with os.fdopen(side) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield main, side
    os.close(main)


def test_the_keyboard_is_read_key_by_key_and_given_back(terminal):
    import termios

    main, side = terminal
    before = termios.tcgetattr(side)
    with _keyboard() as keys:
        os.write(main, b"\x1b[A\x1b[Bw D\x1b[C\x1b[Dxq")
        names = [next(keys) for _ in range(8)]
    assert names == ["up", "down", "up", "stay", "right", "right", "left", "quit"]
    assert termios.tcgetattr(side) == before


def test_keys_of_several_characters_are_read_to_their_end(terminal):
    """Ctrl, Shift and Alt with an arrow end with a letter of WASD; others are dropped whole."""
    main, _ = terminal
    with _keyboard() as keys:
        os.write(main, b"\x1b[1;5A\x1b[1;2D\x1b\x1b[B\x1bOC\x1b[3~\x1b[15~\x1b[1;5P\x1baw\x1bq qqq")
        names = list(iter(keys.__next__, "quit"))
    assert names == ["up", "left", "down", "right", "up", "stay"]


def test_keys_are_read_one_by_one_after_a_stop(terminal):
    """Ctrl-Z and fg: between them the shell sets the terminal as it likes it, to whole lines."""
    import termios

    _, side = terminal
    handler, lines = signal.getsignal(signal.SIGCONT), termios.tcgetattr(side)
    with _keyboard():
        playing = termios.tcgetattr(side)
        termios.tcsetattr(side, termios.TCSANOW, lines)
        os.kill(os.getpid(), signal.SIGCONT)
        assert termios.tcgetattr(side) == playing != lines
    assert termios.tcgetattr(side) == lines
    assert signal.getsignal(signal.SIGCONT) == handler


def test_a_game_that_is_told_to_end_gives_the_terminal_back(terminal):
    """`timeout 60 rmc play box-world`: or the shell would not show what is typed."""
    import termios

    _, side = terminal
    handler, before = signal.getsignal(signal.SIGTERM), termios.tcgetattr(side)
    with pytest.raises(KeyboardInterrupt), _keyboard():
        signal.raise_signal(signal.SIGTERM)
    assert termios.tcgetattr(side) == before
    assert signal.getsignal(signal.SIGTERM) == handler


def test_with_few_colours_keys_and_locks_have_letters():
    """Of 256 colours a terminal shows eight pairs of the game's twenty alike, of 16 most."""
    state = BoxWorld(view="full").reset(1, torch.Generator().manual_seed(0))
    cells = state.room[0].tolist()
    cells[int(state.agent)] = "@"
    named = {1: " ", 0: " ", 2: "*", "@": "@"}
    expected = "".join(f"{named.get(c) or chr(97 + (c - KEY) % 20)} " for c in cells)
    for colours, shown in (("256", expected), ("standard", expected), ("truecolor", "  " * 196)):
        console = Console(
            file=io.StringIO(), width=120, force_terminal=True, color_system=colours, no_color=False
        )
        play("box-world", seed=0, keys=["quit"], console=console)
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).replace("\r", "")
        assert shown == "".join(line[:28] for line in plain.split("\n")[:14])


@pytest.mark.parametrize(("size", "fits"), [((40, 17), False), ((40, 18), True), ((37, 30), False)])
def test_a_terminal_too_small_for_the_room_is_refused(size, fits):
    """Cut off, the room would hide the player. The text below it may be folded: here into one more line."""
    width, height = size
    style = dict(force_terminal=True, color_system="truecolor", no_color=False)
    narrow = Console(file=io.StringIO(), width=width, height=height, **style)
    if fits:
        assert play("mini-pacman", seed=0, keys=["quit"], console=narrow) == 0
    else:
        with pytest.raises(ValueError, match=f"{width} columns and {height} rows; allowed: 38 and "):
            play("mini-pacman", seed=0, keys=["quit"], console=narrow)


def test_without_a_terminal_it_says_so(monkeypatch):
    for stdin in (io.StringIO("w"), None):  # None: closed
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(ValueError, match="not a terminal"):
            play("box-world")


@pytest.mark.parametrize("game", ["box-world", "mini-pacman"])
def test_a_film_of_a_random_policy(game, tmp_path):
    path = tmp_path / "film.gif"
    record(game, path, seed=1, max_frames=20, cell_pixels=12)
    film = Image.open(path)
    assert film.n_frames >= 5  # equal frames in a row are joined
    assert film.size[0] == 12 * (14 if game == "box-world" else 19)


def test_a_film_keeps_colours_that_are_in_a_few_frames_only(tmp_path):
    """What fits a lock is told by its colour; neighbouring hues differ by 27 of 255."""
    hues = (palette()[KEY : KEY + 20] * 255).round().byte().numpy()
    frames = []
    for hue in hues:
        frame = np.full((64, 64, 3), 200, np.uint8)
        frame[:16, :, 0] = frame[:16, :, 1] = np.arange(64) * 4  # shades, as at the edges of things
        frame[40:50, 40:50] = hue
        frames.append(frame)
    _write_gif(tmp_path / "a.gif", frames, 8)
    film = Image.open(tmp_path / "a.gif")
    for number, hue in enumerate(hues):
        film.seek(number)
        shown = np.asarray(film.convert("RGB"))[45, 45]
        assert np.abs(shown.astype(int) - hue).max() <= 8


def test_a_policy_is_given_what_an_agent_gets(tmp_path):
    seen = []

    def policy(observation, position, action, reward, first):
        assert position.shape == (1, 2)
        seen.append((tuple(observation.shape), int(action), float(reward), bool(first)))
        return torch.tensor([1])

    scores = record("mini-pacman", tmp_path / "a.gif", policy=policy, episodes=2, cell_pixels=4, frame_cap=5)
    assert len(scores) == 2
    assert seen[0] == ((1, 3, 5, 5), 0, 0.0, True)
    assert seen[1][1] == 1
    firsts = [i for i, (_, action, _, first) in enumerate(seen) if first and action == 0]
    assert len(firsts) == 2


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_mp4(tmp_path):
    record("box-world", tmp_path / "film.mp4", max_frames=5)
    assert (tmp_path / "film.mp4").stat().st_size > 1000


@pytest.mark.parametrize(("game", "cell_pixels"), [("mini-pacman", 24), ("box-world", 7)])
def test_a_video_is_given_the_pictures_as_they_are(game, cell_pixels, tmp_path, monkeypatch):
    """Pixel by pixel; an odd side, which H.264 does not take, has its last row or column twice."""
    encoder = tmp_path / "ffmpeg"  # keeps what it is given
    encoder.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/given\ncat > {tmp_path}/pixels\n')
    encoder.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    record(game, tmp_path / "film.mp4", seed=2, max_frames=1, cell_pixels=cell_pixels)
    env = GAMES[game]()
    picture = env.render(env.reset(1, torch.Generator().manual_seed(2)), 0, cell_pixels)
    picture = np.pad(picture, [(0, picture.shape[0] % 2), (0, picture.shape[1] % 2), (0, 0)], mode="edge")
    height, width = picture.shape[:2]
    assert f"-s {width}x{height}" in (tmp_path / "given").read_text()
    pixels = np.fromfile(tmp_path / "pixels", np.uint8).reshape(height, width, 4)
    np.testing.assert_array_equal(pixels[..., :3], picture)


def test_errors_name_the_value(tmp_path):
    with pytest.raises(ValueError, match="game is 'chess'; allowed: box-world, mini-pacman"):
        play("chess")
    with pytest.raises(ValueError, match=r"allowed endings: \.gif, \.mp4"):
        record("box-world", tmp_path / "film.avi")
    with pytest.raises(ValueError, match="episodes is 0"):
        record("box-world", tmp_path / "film.gif", episodes=0)
    with pytest.raises(ValueError, match="frames_per_second is 0; it must be at least 1"):
        record("box-world", tmp_path / "film.gif", max_frames=1, frames_per_second=0)
    with pytest.raises(ValueError, match="'view' is not allowed with a game that is made already"):
        record(BoxWorld(), tmp_path / "film.gif", max_frames=1, view="full")


def test_without_ffmpeg_no_game_is_played(tmp_path, monkeypatch):
    def plays(*seen):
        raise AssertionError("a game was played")

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"film.mp4', and \.mp4 needs ffmpeg, which is not installed"):
        record("box-world", tmp_path / "film.mp4", policy=plays, max_frames=2)
    assert not any(tmp_path.iterdir())
