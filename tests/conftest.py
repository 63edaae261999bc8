"""Shared by all tests: quiet, repeatable, one torch thread per pytest worker and for what it starts."""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # sums in another order would not be the same to the last digit
# Timings on a shared machine say nothing; the same examples every time keep CI repeatable.
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("suite")
