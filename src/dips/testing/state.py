"""A check of modules: all tensors must be in the state, to be saved, stacked and moved."""

from __future__ import annotations

from torch import Tensor, nn

from dips.testing.require import require


def require_tensors_in_state(module: nn.Module) -> None:
    """Refuse plain tensors, buffers that are not saved, and frozen parameters."""
    saved, name = module.state_dict(), type(module).__name__
    for path, part in module.named_modules():
        for own, value in vars(part).items():
            require(
                not isinstance(value, Tensor),
                f"{name} has the tensor '{own}' as a plain attribute: make it a parameter or use "
                "register_buffer",
            )
        for own, value in part.named_buffers(prefix=path, recurse=False):
            is_saved = own in saved or not value.numel()  # an empty one has nothing to save
            require(is_saved, f"{name} does not save buffer '{own}': make it persistent")
    parameters = dict(module.named_parameters())
    if any(value.requires_grad for value in parameters.values()):  # else it was trained before
        for own, value in parameters.items():
            require(
                value.requires_grad,
                f"{name} has the parameter '{own}' without a gradient, and every parameter is "
                "trained: use register_buffer",
            )
