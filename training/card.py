"""The model card, rendered from the manifest so that the two cannot disagree."""

import yaml

from comln_serve.bundle import Manifest
from comln_serve.bundle.manifest import HeadEntry

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


def render_card(name: str, manifest: Manifest) -> str:
    """`README.md` of a bundle."""
    head, training = manifest.head, manifest.training
    pre = manifest.preprocessing
    rows = [
        f"| {a.split} | {a.ways}-way {a.shots}-shot | {100 * a.mean:.2f} +- {100 * a.interval:.2f} "
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
| start | {_STARTS[head.start].format(ways=head.ways)} |
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
