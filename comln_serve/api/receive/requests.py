"""Wire types of requests. No logic beyond their validation."""

import math
import re
from typing import Annotated, Any, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    Json,
    PlainValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from comln_serve.bundle.head import MAX_HORIZON, HorizonRule
from comln_serve.domain.reference import ID_PREFIX, NAME_PATTERN

_MAX_FIELDS = 32
_MAX_METADATA = 32
_MAX_SHOWN = 100
_NAME_IN_WORDS = "1 to 64 letters (a to z), digits, '.', '_' or '-', starting with a letter or digit"
_TEN_YEARS = 10 * 366 * 86_400
MOST_LISTED = 100
# Examples that are removed or relabelled at once: so many numbers of six digits are a URL of 7 kB; proxies take 8.
MOST_EXAMPLES = 500
MOST_NUMBER = 2**31 - 1  # of an example
UNKNOWN_FIELD = "unknown_field"  # type of Pydantic's error


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty or blank")
    return text


def _few_entries(value: Any) -> Any:
    """Stop Pydantic from reporting each of a million bad entries."""
    if isinstance(value, dict) and len(value) > _MAX_METADATA:
        raise ValueError(f"holds {len(value)} entries; at most {_MAX_METADATA} are allowed")
    return value


def _no_blank_label(value: Any) -> Any:
    """Report the first bad label only: a dictionary cannot be `FailFast`."""
    if isinstance(value, dict):
        for label, new in value.items():
            if not isinstance(new, str) or not new.strip():
                raise ValueError(f"the new label of {label[:_MAX_SHOWN]!r} must be a text that is not empty or blank")
    return value


def _labels_by_number(value: Any) -> Any:
    """Read the numbers, and report the first bad entry only."""
    if not isinstance(value, dict):
        return value
    if len(value) > MOST_EXAMPLES:
        raise ValueError(f"holds {len(value)} entries; at most {MOST_EXAMPLES} are allowed")
    for number in value:
        if not re.fullmatch(r"[1-9][0-9]{0,9}", number) or int(number) > MOST_NUMBER:
            raise ValueError(
                f"must have numbers of examples as keys, which GET .../examples lists, not {number[:100]!r}"
            )
    return {int(number): new for number, new in _no_blank_label(value).items()}


def _a_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(f"must be {_NAME_IN_WORDS}")
    return name


def _not_an_id(name: str) -> str:
    if name.startswith(ID_PREFIX):
        raise ValueError(f"must not start with {ID_PREFIX!r}, as ids do")
    return name


# `pattern` is for the document alone, here and below: Pydantic would report it as a regular expression.
_VISIBLE = Field(json_schema_extra={"pattern": r"\S"})
_NOT_EMPTY = Field(json_schema_extra={"minItems": 1})  # refused later, with what to send
Label = Annotated[str, AfterValidator(_not_blank), _VISIBLE]
Base64 = Annotated[
    str,
    Field(description="An image file, base64, or a data URL of it.", json_schema_extra={"contentEncoding": "base64"}),
]
Name = Annotated[str, AfterValidator(_a_name), Field(json_schema_extra={"pattern": NAME_PATTERN})]
ClassifierName = Annotated[
    Name,
    AfterValidator(_not_an_id),
    Field(
        description=f"{_NAME_IN_WORDS}, but not with '{ID_PREFIX}'. If the name exists, the classifier becomes its "
        "next version."
    ),
]
_HorizonInput = Annotated[float, Field(gt=0, le=MAX_HORIZON)] | HorizonRule


def _horizon_of(value: object) -> object:
    """Parse a horizon: a JSON number or a form's text. A union type would report two errors."""
    if isinstance(value, str) and value in get_args(HorizonRule):
        return value
    # float() also reads "1_0" and the digits of other scripts, which is more likely a mistake than a number.
    python_only = isinstance(value, str) and ("_" in value or not value.isascii())
    if isinstance(value, int | float | str) and not isinstance(value, bool) and not python_only:
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if 0.0 < number <= MAX_HORIZON:
            return number
    raise ValueError(
        f'must be a number of flow time over 0 and up to {MAX_HORIZON:g}, or "learned" (the '
        'model\'s own law), or "auto" (chosen from the support images)'
    )


_Horizon = Annotated[float | HorizonRule, PlainValidator(_horizon_of, json_schema_input_type=_HorizonInput)]
_HORIZON = (
    'Amount of adaptation: T in flow time, "learned" (the model\'s own law), or "auto" (chosen from the support '
    "images, by classifying each of them without it); default: {default}. It also applies whenever examples change."
)
Promote = Annotated[
    bool, Field(description="Let the name stand for the new version at once. It always stands for its first version.")
]
Partial = Annotated[
    bool,
    Field(
        description="Leave out images that cannot be used, each with its error in `rejected`, instead of refusing the "
        "request for the first of them."
    ),
]
Metadata = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=512)]],
    # The number before the validator: behind it, the document would have it as the length of a text.
    Field(
        max_length=_MAX_METADATA,
        description="Your own notes: at most 32 texts of at most 512 characters, by keys of at most 64.",
    ),
    BeforeValidator(_few_entries),
]
Lifetime = Annotated[int, Field(ge=1, le=_TEN_YEARS, description="When the classifier expires; default: never.")]
TopK = Annotated[int, Field(ge=1, le=MOST_LISTED, description="How many of the likeliest classes to list.")]


class _Request(BaseModel):
    """Base of all requests. A body with a million mistakes must not produce a million reports:
    lists are `FailFast`, and an object with more than 32 fields is refused as a whole.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, value: Any) -> Any:
        """Name a misspelt field, and those that are allowed, rather than one that is missing because of it."""
        if not isinstance(value, dict):
            return value
        allowed = ", ".join(cls.model_fields)
        if len(value) > _MAX_FIELDS:
            raise ValueError(f"holds {len(value)} fields; the fields are {allowed}")
        if unknown := [name[:_MAX_SHOWN] for name in value if name not in cls.model_fields]:
            names = f"{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}"
            # One place only: Pydantic would fill in those that a field's name has, too.
            problem = f"Unknown field{names}; allowed are {allowed}"
            raise PydanticCustomError(UNKNOWN_FIELD, "{problem}", {"problem": problem})
        return value


class SupportImage(_Request):
    image: Base64
    label: Label


class AdaptOptions(_Request):
    """Options of an adapt request."""

    model: str | None = Field(None, description="A model of GET /models.")
    name: ClassifierName | None = None
    horizon: _Horizon | None = Field(None, description=_HORIZON.format(default="the model's own rule"))
    promote: Promote = True
    metadata: Metadata | None = None
    expires_in_seconds: Lifetime | None = None
    partial: Partial = False


class AdaptForm(AdaptOptions):
    """The same options as form fields: all are text, so `metadata` is JSON."""

    metadata: Json[Metadata] | None = None  # type: ignore[assignment]


class AdaptRequest(AdaptOptions):
    support: Annotated[list[SupportImage], FailFast(), _NOT_EMPTY]


class ExamplesOptions(_Request):
    """Options of a request for more examples, in JSON or a form."""

    promote: Promote = True
    partial: Partial = False


class ExamplesRequest(ExamplesOptions):
    support: Annotated[list[SupportImage], FailFast(), _NOT_EMPTY]


class AgainOptions(_Request):
    """Options of a request to adapt a classifier again, in JSON or a form."""

    horizon: _Horizon | None = Field(default=None, description=_HORIZON.format(default="as the classifier has it"))
    promote: Promote = True


class RenameRequest(_Request):
    """New labels for classes of a classifier."""

    labels: Annotated[
        dict[str, Annotated[str, _VISIBLE]],
        Field(
            min_length=1,
            description="The new label of each class to rename, by the label that it has. Classes that get the same "
            "label, or that of another class, are merged.",
        ),
        BeforeValidator(_no_blank_label),
    ]
    promote: Promote = True


class RelabelRequest(_Request):
    """New labels for some of a classifier's examples."""

    labels: Annotated[
        dict[int, Annotated[str, _VISIBLE]],
        Field(
            min_length=1,
            max_length=MOST_EXAMPLES,
            json_schema_extra={"propertyNames": {"pattern": "^[1-9][0-9]*$"}},
            description="The new label, of a class that there is or of a new one, of each example to relabel, by its "
            "number.",
        ),
        BeforeValidator(_labels_by_number),
    ]
    promote: Promote = True


class EditRequest(_Request):
    """What to change of a classifier, weights and examples apart. A field that is left out changes nothing."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    name: ClassifierName = Field(
        "",
        description=f"{_NAME_IN_WORDS}, but not with '{ID_PREFIX}'. A classifier without a name becomes the next "
        "version of it. If the classifier is given by its name, all versions are renamed; the new name must have none.",
    )
    promote: bool = Field(
        True, description="Let the name stand for a classifier that had none. It always stands for its first version."
    )
    metadata: Metadata = Field({}, description="Your own notes, in place of those that are there.")
    expires_in_seconds: Lifetime | None = Field(
        None, description="When the classifier expires, from now on; null: never."
    )

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set - {"promote"}:
            raise ValueError("must have one of name, metadata and expires_in_seconds")
        return self


class PredictOptions(_Request):
    """Options of a predict request, in JSON or a form."""

    classifier: str = Field(description="Id, name or name@version of a classifier.")
    top_k: TopK = 5
    unknown: bool = Field(False, description="Say of each image whether it is unlike every class.")
    examples: bool = Field(
        False,
        description="Say of the images that the classifier was adapted to, which of its examples they are. Predictions "
        "of these are better than those of new images.",
    )
    all_views: bool = Field(
        False,
        description="Look at each image in all the views that the model takes of support images, such as a closer "
        "crop, and classify their mean: somewhat more accurate, for as many times the work.",
    )
    partial: Partial = False


class PredictRequest(PredictOptions):
    images: Annotated[list[Base64], FailFast(), _NOT_EMPTY]
