"""The RMC in a reinforcement-learning loop of your own, with episodes that end in the middle of an unroll.

    python examples/reinforcement_loop.py

The game needs a memory: a cue, left or right, is shown at the first step of an episode only; two to five
steps later a light asks for it. The right answer gives 1, the wrong one -1, and the next episode begins.
Prints the mean reward of an answer, which is 0 for a player that guesses.

Three things make a recurrent agent right, and are easily got wrong:
1. acting: the memory of a game that has ended is put back before its next step;
2. learning: `resets` does the same inside the unroll, so that outputs are those of acting (checked below);
3. between unrolls the memory is carried on, detached.
"""

import argparse

import torch
from torch import nn

from relational_rnn import RelationalMemory
from relational_rnn.cores.base import select

UNROLL, GAMES, DISCOUNT = 16, 64, 0.9


class Recall:
    """A batch of games. Observation: cue left, cue right, light."""

    def __init__(self, games: int, generator: torch.Generator):
        self.generator = generator
        self.cue = torch.zeros(games, dtype=torch.long)
        self.left = torch.zeros(games, dtype=torch.long)  # steps until the light
        self.first = torch.ones(games, dtype=torch.bool)  # an episode begins with what is seen now
        self._begin(self.first)

    def _begin(self, which: torch.Tensor) -> None:
        cue = torch.randint(0, 2, which.shape, generator=self.generator)
        wait = torch.randint(2, 6, which.shape, generator=self.generator)
        self.cue, self.left = torch.where(which, cue, self.cue), torch.where(which, wait, self.left)
        self.first = which

    def look(self) -> torch.Tensor:
        seen = nn.functional.one_hot(self.cue, 2) * self.first[:, None]
        return torch.cat((seen, (self.left == 0)[:, None]), 1).float()

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """-> reward, and whether the episode is over."""
        over = self.left == 0
        reward = torch.where(over, 2.0 * (action == self.cue) - 1, 0.0)
        self.left = self.left - 1
        self._begin(over)
        return reward, over


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = RelationalMemory(3, mem_slots=2, head_size=8, num_heads=2)
        self.policy, self.value = nn.Linear(self.core.output_size, 2), nn.Linear(self.core.output_size, 1)

    def heads(self, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.policy(output), self.value(output).squeeze(-1)


@torch.no_grad()
def act(agent: Agent, game: Recall, memory: torch.Tensor):
    """UNROLL steps of all games -> what was seen, done and got, [T, B, ...] each, and the memory after."""
    record = []
    for _ in range(UNROLL):
        x, first = game.look(), game.first
        memory = select(first, agent.core.initial_like(memory), memory)  # 1.
        output, memory = agent.core.step(x, memory)
        logits, _ = agent.heads(output)
        action = torch.distributions.Categorical(logits=logits).sample()
        reward, over = game.step(action)
        record.append((x, first, action, reward, over, logits))
    return [torch.stack(part) for part in zip(*record, strict=True)], memory


def returns(rewards: torch.Tensor, over: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Discounted sums of what followed each step, ending with episodes; after the unroll the value `last`."""
    found = []
    for reward, end in zip(reversed(rewards), reversed(over), strict=True):
        last = reward + DISCOUNT * last * ~end
        found.append(last)
    return torch.stack(found[::-1])


def main(updates: int = 40, seed: int = 0) -> float:
    torch.manual_seed(seed)
    agent, game = Agent(), Recall(GAMES, torch.Generator().manual_seed(seed))
    optimizer = torch.optim.Adam(agent.parameters(), 5e-3)
    memory = agent.core.initial_state(GAMES)
    score = 0.0
    for update in range(1, updates + 1):
        before = memory
        (x, first, action, reward, over, acted), memory = act(agent, game, memory)

        output, _ = agent.core(x, before, resets=first)  # 2.
        logits, value = agent.heads(output)
        if not torch.allclose(logits, acted, atol=1e-4):
            raise AssertionError("learning does not see what acting saw")
        with torch.no_grad():  # the value of what comes after the unroll
            fresh = select(game.first, agent.core.initial_like(memory), memory)
            _, last = agent.heads(agent.core.step(game.look(), fresh)[0])
        target = returns(reward, over, last)
        policy = torch.distributions.Categorical(logits=logits)
        advantage = (target - value).detach()
        loss = -(policy.log_prob(action) * advantage).mean() + 0.5 * (target - value).square().mean()
        loss = loss - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
        optimizer.step()
        memory = memory.detach()  # 3.; `act` made it without gradients already, and it does no harm
        score = (reward.sum() / over.sum()).item()
        if update % 5 == 0:
            print(f"update {update}: mean reward of an answer {score:+.2f}")
    return score


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
