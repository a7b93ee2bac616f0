"""The flat vector of a model's trainable parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import nn

from fedDP.errors import ModelError

Arrays = dict[str, npt.NDArray[np.floating]]


@dataclass(frozen=True)
class ParameterLayout:
    """Where each trainable parameter lies in the flat vector, by name.

    The order is by name, so that it depends on neither the order of definition nor of arrival. Buffers and frozen
    parameters have no place in it: they never leave a node.

    Attributes:
        names: sorted.
        shapes: of each, in that order; a shape may be ``()``.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, npt.NDArray[np.floating]]) -> ParameterLayout:
        """The layout of named arrays.

        Raises:
            ModelError: for an array that is not float16, float32 or float64.
        """
        names = tuple(sorted(arrays))
        for name in names:
            if arrays[name].dtype.kind != "f" or arrays[name].dtype.itemsize > 8:
                dtype = arrays[name].dtype
                raise ModelError(f"Parameter {name!r} is {dtype}; only float16, float32 and float64 train.")
        return cls(names, tuple(arrays[name].shape for name in names))

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """The number of coordinates of each parameter; 1 for a 0-d one."""
        return [int(np.prod(shape)) for shape in self.shapes]

    def flatten(self, arrays: Mapping[str, npt.NDArray[np.floating]]) -> npt.NDArray[np.float64]:
        """Named arrays as one float64 vector of shape (P,).

        Raises:
            ModelError: when names or shapes are not the layout's.
        """
        if set(arrays) != set(self.names):
            difference = sorted(set(arrays) ^ set(self.names))
            raise ModelError(f"The parameters are not the model's: {', '.join(map(repr, difference))} differ.")
        for name, shape in zip(self.names, self.shapes, strict=True):
            if arrays[name].shape != shape:
                raise ModelError(f"Parameter {name!r} has shape {arrays[name].shape}, the model's is {shape}.")
        return np.concatenate([np.asarray(arrays[name], dtype=np.float64).reshape(-1) for name in self.names])

    def unflatten(self, vector: npt.NDArray[np.floating]) -> Arrays:
        """A vector of shape (P,) as named arrays of its own dtype."""
        parts = np.split(vector, np.cumsum(self.sizes)[:-1])
        return {name: part.reshape(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}


def trainable_arrays(model: nn.Module) -> Arrays:
    """Copies of the model's trainable parameters, by name."""
    return {
        name: parameter.detach().cpu().numpy().copy()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def model_sha256(arrays: Mapping[str, npt.NDArray[np.floating]]) -> str:
    """The hash of the trainable arrays: little-endian bytes, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()
