"""Shared by all tests: quiet, repeatable, one torch thread per pytest worker."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
# Timings on a shared machine say nothing; the same examples every time keep CI repeatable.
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("suite")
