"""Can the agent's network learn where a key leads? BoxWorld's question without walking and without rewards.

    python benchmarks/box_world_colours.py                     # five settings, 17 minutes on a CPU
    python benchmarks/box_world_colours.py --device cuda --seconds 20

Levels of two boxes and a distractor at the first lock. The network sees a few windows of the room, with the
first key in hand, and in the last of them it stands before one of the two locks that fit: is it the
distractor's? It is if the key behind it opens nothing, so the colour of the gem's lock has to be found again.
What an agent must know to look ahead, with every answer told; half of the answers are right by guessing.

`gem`: one window with the gem's box anywhere in it, then the question. `all`: all three boxes in random order
and one of them again. Printed are the share of answers right and the update at which it first passed 75 %.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from provenance import provenance, save
from torch import Tensor, nn

from relational_rnn.agents.network import NO_ACTION, Inputs
from relational_rnn.environments.box_world_levels import DECOY, GEM, KEY, LOCK, NUM_COLOURS
from relational_rnn.experiments.box_world import BACKGROUND, fast, make_player
from relational_rnn.training.optimizers import make_optimizer

SETTINGS = [  # windows, contrast, how layers begin
    ("gem", 4.0, "sonnet"),
    ("gem", 1.0, "sonnet"),
    ("gem", 4.0, "torch"),
    ("gem", 1.0, "torch"),
    ("all", 4.0, "sonnet"),
]


def questions(env, windows: str, count: int, generator: torch.Generator) -> tuple[Inputs, Tensor]:
    """About `count` of them -> what is seen, `[T, B, ...]`, and whether it is the distractor's, `[B]`."""
    levels = env.generator.sample(5 * count // 2 + 64, generator)  # in half of them it is at the first lock
    room = levels.room.long()
    is_lock, holds, right = room >= LOCK, room.roll(1, 1), room.roll(-1, 1)
    loose = (room >= KEY) & (room < LOCK) & (right < LOCK)
    key = (room * loose).sum(1)
    fits = is_lock & ((room - key[:, None]) % NUM_COLOURS == 0)
    useful = levels.accepted & ((fits & (room >= DECOY)).sum(1) == 1)
    room, is_lock, holds, fits, key = (x[useful][:count] for x in (room, is_lock, holds, fits, key))

    def drawn(allowed: Tensor) -> Tensor:
        """One allowed cell of each room."""
        return (torch.rand(room.shape, generator=generator, device=env.device) * allowed).argmax(1)

    def standing_near(lock: Tensor) -> Tensor:
        """A free cell from which a box is in sight, right below its lock if the first try is not free."""
        random = dict(generator=generator, device=env.device)
        row = (lock // env.side + torch.randint(-2, 3, lock.shape, **random)).clamp(1, env.side - 2)
        column = (lock % env.side + torch.randint(-2, 2, lock.shape, **random)).clamp(1, env.side - 2)
        cell = row * env.side + column
        return torch.where(room.gather(1, cell[:, None]).squeeze(1) == 0, cell, lock + env.side)

    if windows == "gem":
        shown = [drawn(is_lock & (holds == GEM))]
    else:
        order = torch.rand(room.shape, generator=generator, device=env.device)
        order = (order * is_lock).argsort(1, descending=True)
        shown = [*order[:, :3].unbind(1), drawn(is_lock)]
    asked = drawn(fits)
    agents = torch.stack([*map(standing_near, shown), asked + 1])  # [T, B]
    state = replace(env.reset(1, generator), room=room.to(torch.uint8), held=key)
    image = torch.stack([env.observe(replace(state, agent=agent)) for agent in agents])
    position = torch.stack((agents // env.side, agents % env.side), -1)
    nothing = torch.zeros(agents.shape, device=env.device)
    answer = room.gather(1, asked[:, None]).squeeze(1) >= DECOY
    return Inputs(image, position, torch.full_like(agents, NO_ACTION), nothing), answer


def begin_as_torch_does(network: nn.Module) -> None:
    for layer in (*network.encoder.layers, network.value):
        layer.reset_parameters()


def train(windows: str, contrast: float, first: str, options: argparse.Namespace) -> dict:
    device = torch.device(options.device)
    base = fast()
    config = replace(
        base,
        core=options.core,
        training=replace(base.training, learning_rate=options.learning_rate),
        task=replace(base.task, solution_lengths=(2,), num_forward=(1,)),
        model=replace(
            base.model,
            total_units=options.units,
            background=BACKGROUND if contrast != 1 else 0.0,
            contrast=contrast,
        ),
    )
    torch.manual_seed(options.seed)
    env, network = make_player(config, device)
    if first == "torch":
        begin_as_torch_does(network)
    network.to(device)
    optimizer = make_optimizer(network, config.training, device)
    generator = torch.Generator(device).manual_seed(options.seed)
    seconds = options.seconds * (3 if windows == "all" else 1)
    began, curve, right = time.perf_counter(), [], []
    while time.perf_counter() - began < seconds or not curve:
        seen, answer = questions(env, windows, options.batch_size, generator)
        begins = torch.zeros(seen.last_action.shape, dtype=torch.bool, device=device)
        begins[0] = True
        output, _ = network(seen, network.initial_state(len(answer)), begins)
        logit = output.value[-1]
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logit, answer.float()).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        right.append(((logit > 0) == answer).float().mean())
        if len(right) == 50:
            updates = 50 * (len(curve) + 1)
            curve.append((updates, round(torch.stack(right).mean().item(), 4)))
            right = []
    left = next((updates for updates, share in curve if share > 0.75), None)
    found = {"windows": windows, "contrast": contrast, "first_weights": first}
    return found | {
        "right": curve[-1][1],
        "updates": curve[-1][0],
        "above_75_percent_at": left,
        "curve": curve,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--seconds", type=float, default=150, help="of each setting; all takes three times as many"
    )
    parser.add_argument("--core", choices=("rmc", "lstm"), default="rmc")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--units", type=int, default=256, help="of the core, in all")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/box_world_colours.json")
    options = parser.parse_args()
    rows = []
    print("windows contrast  first   right  updates  75 % at")
    for setting in SETTINGS:
        row = train(*setting, options)
        rows.append(row)
        cells = "{:7} {:8} {:>6}".format(*setting)
        left = row["above_75_percent_at"] or "never"
        print(f"{cells} {row['right']:7.1%} {row['updates']:8} {left:>8}", flush=True)
        settings = {name: value for name, value in vars(options).items() if name != "out"}
        save(provenance(options.device) | {"settings": settings, "rows": rows}, options.out)


if __name__ == "__main__":
    main()
