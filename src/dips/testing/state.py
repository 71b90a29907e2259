"""What every module of one's own has to be: all its numbers are saved and stacked with it."""

from __future__ import annotations

from torch import Tensor, nn

from dips.testing.require import require


def numbers_are_in_the_state(module: nn.Module) -> None:
    """No plain tensors, no buffers that are not saved, no parameters that must not be trained."""
    saved, name = module.state_dict(), type(module).__name__
    for path, part in module.named_modules():
        for own, value in vars(part).items():
            require(
                not isinstance(value, Tensor),
                f"{name} has the tensor '{own}' as a plain attribute: make it a parameter or use "
                "register_buffer",
            )
        for own, _ in part.named_buffers(prefix=path, recurse=False):
            require(own in saved, f"{name} does not save buffer '{own}': make it persistent")
    parameters = dict(module.named_parameters())
    if any(value.requires_grad for value in parameters.values()):  # none: it has been trained
        for own, value in parameters.items():
            require(
                value.requires_grad,
                f"{name} has the parameter '{own}' without a gradient, and every parameter is "
                "trained: use register_buffer",
            )
