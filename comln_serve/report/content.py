"""What a report says, as it is stored and sent."""

from pydantic import BaseModel, ConfigDict, Field


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Suspect(_Part):
    """A support image that may carry the wrong label."""

    number: int = Field(
        description="What it is called among the classifier's examples, where it can be removed; "
        "of the images of one POST /adapt the first is 1."
    )
    label: str = Field(description="The label it was sent with.")
    likelier: str = Field(description="The label the other support images suggest.")
    score: float = Field(
        description="Probability of `likelier` against `label`, by a classifier that has not seen "
        "the image; listed from 0.95."
    )


class HeldOutReport(_Part):
    """Support images classified by classifiers that were adapted without them."""

    folds: int = Field(
        description="Classifiers this took, each adapted without an equal share of every class."
    )
    judged: int = Field(description="Support images that were left out and classified.")
    accuracy: float = Field(ge=0, le=1, description="Share of these that were classified right.")
    confusion: list[list[int]] = Field(
        description="Counts by label given (rows) and predicted (columns), in the order of "
        "`classes`."
    )
    suspects: list[Suspect] = Field(description="Images that look mislabelled, worst first.")


class HorizonCandidate(_Part):
    """One horizon, as the held-out support images see it."""

    horizon: float = Field(description="T, in flow time.")
    loss: float = Field(
        description="Cross-entropy of the held-out images at its best temperature, every class "
        "counting the same."
    )
    accuracy: float = Field(
        ge=0, le=1, description="Share of these classified right, every class counting the same."
    )


class HorizonChoice(_Part):
    """How the horizon was chosen for this classifier."""

    learned: float = Field(description="The horizon of the model's own law, for comparison.")
    least_loss: float = Field(description="The candidate with the least loss.")
    level: tuple[float, float] = Field(
        description="Shortest and longest candidate whose loss is the least but for noise (two "
        "standard errors); of these the one nearest to `learned` is used."
    )
    candidates: list[HorizonCandidate] = Field(description="The curve, shortest first.")


class Report(_Part):
    """What the support images say of the classifier made of them."""

    held_out: HeldOutReport | None = Field(
        description="Null where no image could be left out; `notes` says why."
    )
    notes: list[str] = Field(description="What was not judged, or not in full, and why.")
    horizon_choice: HorizonChoice | None = Field(
        None, description="Where the horizon was chosen from the support images; else null."
    )
    own_horizon: bool = Field(
        description="Whether the horizon follows the model's own rule: its calibration holds for "
        "no other."
    )
    unknown_threshold: float | None = Field(
        description="Similarity under which an image is unknown, from the images left out; null: "
        "there were too few, and the model's threshold is used where its horizon was."
    )
