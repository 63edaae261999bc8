"""Section 4.2 and A.3: the games, whole batches of them as tensors."""

from relational_rnn.environments.base import Step
from relational_rnn.environments.box_world import BoxWorld, BoxWorldState
from relational_rnn.environments.mini_pacman import MiniPacman, MiniPacmanState

__all__ = ["BoxWorld", "BoxWorldState", "MiniPacman", "MiniPacmanState", "Step"]
