"""The model card, rendered from the manifest so that the two cannot disagree."""

import yaml

from comln_serve.bundle import Calibration, Manifest
from comln_serve.bundle.calibration import TaskLaw
from comln_serve.bundle.manifest import HeadEntry
from training.evaluation.calibration_report import calibration_table, suspects_table, unknown_table
from training.evaluation.tables import markdown

_STARTS = {
    "learned": "a learned classifier W0, which ties the model to {ways} classes",
    "zero": "one row shared by all classes (any number of classes)",
    "prototype": "the scaled mean embedding of each class (any number of classes)",
}


def _horizon(head: HeadEntry) -> str:
    if head.exponents is None:
        return f"{head.horizon:.6g}"
    law = head.exponents
    return (
        f"{head.horizon:.6g} M^{law.examples:.3g} N^{law.classes:.3g} "
        f"(mean norm^2)^{law.norm:.3g} for M examples of N classes"
    )


def _start(head: HeadEntry) -> str:
    text = _STARTS[head.start].format(ways=head.ways)
    if head.similarity is None:
        return text
    return f"{text}, levelled for a cosine of {head.similarity:.3f} between images of a class"


def render_card(name: str, manifest: Manifest) -> str:
    """`README.md` of a bundle."""
    head, training = manifest.head, manifest.training
    pre = manifest.preprocessing
    rows = [
        f"| {a.split} | {a.task} | {100 * a.mean:.2f} +- {100 * a.interval:.2f} "
        f"| {a.episodes} | {a.queries} | {a.seed} | `{a.command}` |"
        for a in manifest.accuracy
    ]
    versions = ", ".join(f"{library} {number}" for library, number in training.versions.items())
    recipe = yaml.safe_dump(training.config, sort_keys=False).rstrip()
    return f"""# {name}

{manifest.description}

| | |
|---|---|
| input | uint8 RGB, {pre.image_size} x {pre.image_size} px; {pre.resize}, {pre.interpolation} |
| embedding | {manifest.embedding_size} numbers |
| start | {_start(head)} |
| horizon T | {_horizon(head)} (flow time) |
| regularisation | {head.regularisation:g} |
| weighting of support examples | {head.weighting} |
| licence of the weights | {manifest.licence} |
| created | {manifest.created} |

## Accuracy

In percent, with the 95% interval of the mean (1.96 sd / sqrt(episodes)).

| split | task | accuracy | episodes | queries a class | seed | command |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}
{_comparisons(manifest)}{_calibration(manifest.calibration)}
## Training

Data: {training.data}

{training.updates} updates in {training.seconds / 60:.0f} minutes on {training.hardware};
seed {training.seed}; {versions}:

    {training.command}

{training.notes}

The recipe as used:

```yaml
{recipe}
```
"""


def _comparisons(manifest: Manifest) -> str:
    if not manifest.comparisons:
        return ""
    header = ["split", "task", "head", "accuracy", "bundle ahead by", "episodes", "what it is"]
    rows = [
        [
            entry.split,
            entry.task,
            entry.head,
            f"{100 * entry.mean:.2f} +- {100 * entry.interval:.2f}",
            f"{100 * entry.ahead:+.2f} +- {100 * entry.ahead_interval:.2f}",
            str(entry.episodes),
            entry.description
            + (f"; {entry.unconverged} fits unfinished" if entry.unconverged else ""),
        ]
        for entry in manifest.comparisons
    ]
    commands = dict.fromkeys(entry.command for entry in manifest.comparisons)
    return f"""
### Other heads on the same embeddings

Fitted on the same images of the same episodes. The difference to the bundle's own head is taken
episode by episode; it means something where it is larger than its 95% interval.

{markdown(header, rows)}

{chr(10).join(f"    {command}" for command in commands)}
"""


def _law(law: TaskLaw) -> str:
    return f"{law.constant:.4f} {law.shots:+.4f} ln k {law.ways:+.4f} ln N"


def _calibration(calibration: Calibration | None) -> str:
    if calibration is None:
        return ""
    shots, ways = (
        f"{least:g} to {most:g}" for least, most in (calibration.shots, calibration.ways)
    )
    seed = calibration.seed
    temperature, unknown = _law(calibration.log_temperature), _law(calibration.unknown)
    return f"""
## Calibration

On {calibration.split} classes: fitted to {calibration.episodes} episodes of each task with seed
{seed}, measured on as many others with seed {seed + 1}; {calibration.queries} queries a class:

    {calibration.command}

For k images a class (the harmonic mean where they differ) and N classes the temperature is
exp({temperature}), with k kept within {shots} and N within {ways}.
Expected calibration error in 15 bins:

{markdown(*calibration_table(calibration))}

Images of classes outside the task, told by their cosine to the nearest class. The threshold comes
from the images of the task; where these are too few it is {unknown}:

{markdown(*unknown_table(calibration))}

Support images with wrong labels, listed from a score of 0.95:

{markdown(*suspects_table(calibration))}
"""
