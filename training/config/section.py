"""Base class and value types of a recipe's sections."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]


def _both_ends(value: object) -> object:
    return (value, value) if isinstance(value, int) else value


def _ordered(value: tuple[int, int]) -> tuple[int, int]:
    if value[0] > value[1]:
        raise ValueError("a range is [least, most]")
    return value


# A range [least, most]; a single number is a range of that number alone.
Range = Annotated[tuple[Count, Count], BeforeValidator(_both_ends), AfterValidator(_ordered)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
