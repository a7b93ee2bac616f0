"""The gradients of a block of clients, each with respect to its own copy of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

Parameters = dict[str, Tensor]
Loss = Callable[[Parameters, Tensor, Tensor, Tensor], Tensor]
"""One client's loss: (parameters, features, targets, weights) -> scalar."""


class BlockGradient:
    """Maps a client's loss over a block and differentiates it.

    Mapping the forward pass alone, and taking one ordinary backward pass of the clients' summed losses, gives the same
    gradients as mapping the gradient, in two thirds of the time: clients share no parameter, so the sum separates. A
    few layers (GRU) can only be mapped inside a gradient. Which way a model takes is found out once, on zeros, so that
    it depends on nobody's data.

    Args:
        loss: one client's loss.
    """

    def __init__(self, loss: Loss) -> None:
        self._losses: Callable[..., Tensor] = vmap(loss, in_dims=(0, 0, 0, 0))
        self._mapped: Callable[..., Any] = vmap(grad(loss), in_dims=(0, 0, 0, 0))
        self._by_backward: bool | None = None

    def __call__(self, parameters: Parameters, features: Tensor, targets: Tensor, weights: Tensor) -> Parameters:
        """The gradients.

        Args:
            parameters: (K, ...) each.
            features: (K, B, ...).
            targets, weights: (K, B).

        Returns:
            Gradients with the names and shapes of `parameters`; some may share memory.
        """
        if self._by_backward is None:
            self._by_backward = self._can_go_backward(parameters, features, targets, weights)
        if self._by_backward:
            return self._backward(parameters, features, targets, weights)
        gradients: Parameters = self._mapped(parameters, features, targets, weights)
        return gradients

    def _backward(self, parameters: Parameters, features: Tensor, targets: Tensor, weights: Tensor) -> Parameters:
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        total = self._losses(leaves, features, targets, weights).sum()
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, gradients, strict=True))

    def _can_go_backward(self, parameters: Parameters, features: Tensor, targets: Tensor, weights: Tensor) -> bool:
        try:
            self._backward(parameters, torch.zeros_like(features), torch.zeros_like(targets), weights)
        except Exception:  # whatever it is: the other way will say what is wrong with the model
            return False
        return True
