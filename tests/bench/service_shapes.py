# SPDX-License-Identifier: Apache-2.0
"""Shapes at which the service is measured beside Triton, and how many times Triton's requests/s are wanted."""
import typing


class Shape(typing.NamedTuple):
    tokens: int
    width: int  # D
    heads: int
    wanted: float


SHAPES = (Shape(tokens=10, width=512, heads=8, wanted=5.0), Shape(tokens=128, width=768, heads=12, wanted=1.2))
