"""The report on a classifier: made when it is adapted, stored with it and sent as JSON."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from unicodedata import normalize

from pydantic import BaseModel, ConfigDict, Field

from comln_serve.domain.words import listed

# A label in a note, quoted by repr(); no apostrophe within a word begins one. One pattern for all labels: `re` keeps
# the patterns it has seen, and one made of 500 labels takes 10 MB.
_LITERAL = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")

# Suspects in a report. Each carries two labels: with the longest ones, the suspects of 5000 images with random labels
# would be 10 MB, and other requests wait while such a report is read.
MOST_SUSPECTS = 500

# Begins the note, as of reports that are stored already.
_ALIKE = "Labels that differ only in case"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Suspect(_Part):
    """A support image that may carry the wrong label."""

    number: int = Field(
        description="The example's number, by which it can be removed; the first image of a POST /adapt is number 1."
    )
    label: str = Field(description="The label sent with the image.")
    likelier: str = Field(description="The label the other support images suggest.")
    score: float = Field(
        description="Probability of `likelier` against `label`, by a classifier that has not seen "
        "the image; listed from 0.95, or from 0.7 if no other image reaches that."
    )


class HeldOutReport(_Part):
    """Support images classified by classifiers that were adapted without them."""

    folds: int = Field(
        description="Number of classifiers adapted for this, each without an equal share of every class."
    )
    judged: int = Field(description="Support images that were left out and classified.")
    accuracy: float = Field(ge=0, le=1, description="Share of these that were classified correctly.")
    confusion: list[list[int]] = Field(
        description="Counts by label given (rows) and predicted (columns), in the order of `classes`."
    )
    suspects: list[Suspect] = Field(description=f"Images that look mislabelled, worst first, at most {MOST_SUSPECTS}.")
    predicted: list[int | None] | None = Field(
        None,
        description="Class predicted for each support image when it was left out, as a position in `classes`, in "
        "the order of GET /classifiers/{reference}/examples; null for an image that was not judged. Null in "
        "reports made before this was kept.",
    )


class HorizonCandidate(_Part):
    """One horizon, and its results on the held-out support images."""

    horizon: float = Field(description="T, in flow time.")
    loss: float = Field(
        description="Cross-entropy of the held-out images at its best temperature; all classes have equal weight."
    )
    accuracy: float = Field(ge=0, le=1, description="Share classified correctly; all classes have equal weight.")


class HorizonChoice(_Part):
    """How the horizon was chosen for this classifier."""

    learned: float = Field(description="The horizon of the model's own law, for comparison.")
    least_loss: float = Field(description="The candidate with the least loss.")
    level: tuple[float, float] = Field(
        description="Shortest and longest candidate whose loss is within noise (two standard "
        "errors) of the least; the one of these nearest to `learned` is used."
    )
    candidates: list[HorizonCandidate] = Field(description="All candidates, shortest first.")


class Report(_Part):
    """How good a classifier is, judged by its own support images."""

    held_out: HeldOutReport | None = Field(description="Null if no image could be left out; `notes` says why.")
    notes: list[str] = Field(description="What was not judged, or only in part, and why.")
    near_duplicates: list[list[int]] = Field(
        [],
        description="Numbers of examples that are nearly the same photo as others of their class, in groups. A "
        "group is left out together.",
    )
    contradictory: list[list[int]] = Field(
        [], description="Numbers of examples that are the same photo in several classes, by photo: a label is wrong."
    )
    horizon_choice: HorizonChoice | None = Field(
        None, description="How the horizon was chosen from the support images; null if it was not."
    )
    own_horizon: bool = Field(
        description="Whether the horizon follows the model's own rule; only then may the model's calibration apply."
    )
    unknown_threshold: float | None = Field(
        description="Similarity below which an image is unknown, from the images left out; null: "
        "these were too few, and the threshold is that of the model's calibration, where it applies."
    )
    nearest_other_class: float | None = Field(
        None,
        description="Mean similarity of the images to the class most like each but its own, with which thresholds of "
        "a calibration rise and fall; null: `unknown_threshold` is there.",
    )
    temperature: float | None = Field(
        None,
        description="What logits are best divided by, from the images left out; null: these were too few. It is used "
        "where the model has no calibration, or its calibration does not apply.",
    )

    def renamed(self, labels: Mapping[str, str]) -> "Report":
        """The report with new labels, in its suspects and wherever its notes quote one.

        Args:
            labels: new label of every class, by label.
        """
        quoted = {repr(label): repr(new) for label, new in labels.items()}
        held_out = self.held_out
        if held_out is not None:
            suspects = [
                one.model_copy(update={"label": labels[one.label], "likelier": labels[one.likelier]})
                for one in held_out.suspects
            ]
            held_out = held_out.model_copy(update={"suspects": suspects})
        kept = [note for note in self.notes if not note.startswith(_ALIKE)]
        notes = [
            *note_of_alike(list(labels.values())),
            *(_LITERAL.sub(lambda one: quoted.get(one[0], one[0]), note) for note in kept),
        ]
        return self.model_copy(update={"held_out": held_out, "notes": notes})


def note_of_alike(labels: Sequence[str]) -> list[str]:
    """A note of the labels that differ only in case, in blanks or in how letters are encoded; none if there are none.

    Those that look the same, such as an accent within a letter and after it, are quoted by their code points.
    """
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault("".join(normalize("NFKC", label).casefold().split()), []).append(label)
    alike: list[str] = []
    for group in groups.values():
        if len(group) > 1:
            same = _looking_alike(group)
            alike.append(listed([ascii(one) if one in same else repr(one) for one in group], " and "))
    what = f"{_ALIKE}, blanks or the encoding of letters are different classes"
    return [f"{what}: {listed(alike, '; ')}. Rename one to make them one class."] if alike else []


def _looking_alike(labels: Sequence[str]) -> set[str]:
    """Those of different labels that look the same as another one. Each is normalised once: a label of 256 accents
    takes 0.2 ms.
    """
    composed = [normalize("NFC", label) for label in labels]
    counts = Counter(composed)
    return {label for label, form in zip(labels, composed, strict=True) if counts[form] > 1}
