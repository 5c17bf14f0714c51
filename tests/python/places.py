"""Where tests put what they draw: on torch's default device, which FOVEAL_TEST_DEVICE chooses (conftest)."""

import torch


def seeded(seed: int) -> torch.Generator:
    """torch draws numbers on a device by a generator of that device alone."""
    return torch.Generator(torch.get_default_device()).manual_seed(seed)
