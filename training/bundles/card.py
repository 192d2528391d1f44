"""The model card, rendered from the manifest so that the two always agree."""

from collections.abc import Mapping

import yaml

from comln_serve.bundle import Calibration, Manifest
from comln_serve.bundle.calibration import TaskLaw
from comln_serve.bundle.manifest import AccuracyEntry, ComparisonEntry, HeadEntry, TrainingEntry
from comln_serve.imaging import Preprocessing
from training.evaluation.baselines import BASELINES
from training.evaluation.choose import CHOSEN, EPISODES
from training.results.accuracy import Difference, Estimate, mean_by_head
from training.results.calibration_tables import calibration_table, made_worse, suspects_table, unknown_table
from training.results.tables import markdown
from training.results.verdict import verdict

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
    if head.similarity is not None:
        text += f", levelled for a cosine of {head.similarity:.3f} between images of a class"
    if head.shot_offset:
        text += f"; logits of classes with fewer images are raised, beta = {head.shot_offset:.3g}"
    return text


def render_card(name: str, manifest: Manifest) -> str:
    """`README.md` of a bundle."""
    head, training = manifest.head, manifest.training
    pre = manifest.preprocessing
    measured = markdown(
        [*_data_column(manifest), "split", "task", "accuracy", "episodes", "queries a class", "seed", "command"],
        [
            [
                *_data_cell(manifest, a),
                a.split,
                a.task,
                str(Estimate(a.mean, a.interval)),
                str(a.episodes),
                str(a.queries),
                str(a.seed),
                # A "|", as in a regular expression for groups, would end the cell.
                f"`{a.command}`".replace("|", "\\|"),
            ]
            for a in manifest.accuracy
        ],
    )
    metric = "none: the gradient flow as it is"
    if head.whitening:
        metric = f"whitened by the support embeddings, strength r = {head.whitening:.3g}"
    stored = "; those of examples are rounded to 16 bits" if manifest.stored_embeddings == "int16" else ""
    versions = ", ".join(f"{library} {number}" for library, number in training.versions.items())
    recipe = yaml.safe_dump(training.config, sort_keys=False).rstrip()
    return f"""# {name}

{_verdicts(manifest)}

{manifest.description}

| | |
|---|---|
| input | uint8 RGB, {pre.image_size} x {pre.image_size} px; {_resize(pre)}, {pre.interpolation} |
| embedding | {manifest.embedding_size} numbers{stored} |
| start | {_start(head)} |
| horizon T | {_horizon(head)} (flow time){_rule(head)} |
| metric of the flow | {metric} |
| regularisation | {head.regularisation:g} |
| weighting of support examples | {head.weighting} |
| licence of the weights | {manifest.licence} |
| created | {manifest.created} |

## Accuracy

In percent, with the 95% interval of the mean (1.96 sd / sqrt(episodes)).

{measured}
{_comparisons(manifest)}{_calibration(manifest.calibration)}
## Training

Data: {training.data}

{_course(training)}; {versions}:

    {training.command}

{training.notes}

The recipe as used:

```yaml
{recipe}
```
"""


def _resize(policy: Preprocessing) -> str:
    share = policy.crop_fraction
    shown = policy.resize if share == 1.0 else f"{policy.resize} to the central {share:g} of the square"
    if not policy.support_views:
        return shown
    return f"{shown}; support images also to {' and '.join(f'{share:g}' for share in policy.support_views)} of it"


def _rule(head: HeadEntry) -> str:
    if head.horizon_rule == "learned":
        return ""
    return "; chosen for each task from its own support images, this one where they leave it open"


def _course(training: TrainingEntry) -> str:
    if not training.updates:
        return "No updates"
    updates, minutes = training.updates, round(training.seconds / 60)
    return (
        f"{updates} update{'s' * (updates > 1)} in {minutes} minute{'s' * (minutes != 1)} on "
        f"{training.hardware};\nseed {training.seed}"
    )


def _verdicts(manifest: Manifest) -> str:
    """The recorded comparisons in words, a line for each split and task."""
    tasks: dict[tuple[str, str], dict[str | None, dict[str, Difference]]] = {}
    for entry in manifest.comparisons:
        by_data = tasks.setdefault((entry.split, entry.task), {})
        ahead = by_data.setdefault(entry.data, {})
        ahead[entry.head] = Difference(entry.ahead, entry.ahead_interval)
    lines = [
        f"- {task}, split {split}{_over(by_data)}: {verdict(ahead)}"
        for (split, task), by_data in tasks.items()
        if (ahead := mean_by_head(list(by_data.values())))
    ]
    if not lines:
        return (
            "How far this model is ahead of simple heads on the same embeddings, and of its own "
            "start,\nhas not been measured (`comln-train evaluate --baselines all --record`)."
        )
    return "\n".join(lines)


def _over(by_data: Mapping[str | None, object]) -> str:
    names = [name for name in by_data if name is not None]
    if len(by_data) > 1:
        return f", mean over {', '.join(name or 'data without a name' for name in by_data)}"
    return f", {names[0]}" if names else ""


def _data_column(manifest: Manifest) -> list[str]:
    entries = (*manifest.accuracy, *manifest.comparisons)
    return ["data"] if any(entry.data is not None for entry in entries) else []


def _data_cell(manifest: Manifest, entry: AccuracyEntry | ComparisonEntry) -> list[str]:
    return [entry.data or ""] if _data_column(manifest) else []


def _comparisons(manifest: Manifest) -> str:
    if not manifest.comparisons:
        return ""
    header = [*_data_column(manifest), "split", "task", "head", "accuracy", "bundle ahead by", "episodes", "what it is"]
    rows = [
        [
            *_data_cell(manifest, entry),
            entry.split,
            entry.task,
            entry.head,
            str(Estimate(entry.mean, entry.interval)),
            f"{100 * entry.ahead:+.2f} +- {100 * entry.ahead_interval:.2f}",
            str(entry.episodes),
            entry.description + (f"; {entry.unconverged} fits unfinished" if entry.unconverged else ""),
        ]
        for entry in manifest.comparisons
    ]
    commands = dict.fromkeys(entry.command for entry in manifest.comparisons)
    return f"""
### Other heads on the same embeddings

Fitted on the same images of the same episodes. The difference to the bundle's own head is taken
episode by episode; it means something where it is larger than its 95% interval.

{_settings(manifest)}

{markdown(header, rows)}

{chr(10).join(f"    {command}" for command in commands)}
"""


def _settings(manifest: Manifest) -> str:
    """What the settings of the simple heads were chosen on, in words."""
    ways: dict[str, dict[str, None]] = {}
    for entry in manifest.comparisons:
        if entry.head.endswith("-cv"):
            how = "chosen in every single task, by cross-validation on its support images"
        elif entry.head not in BASELINES or not BASELINES[entry.head].setting:
            continue
        elif CHOSEN in entry.description:
            how = f"chosen for each kind of task on {EPISODES} episodes of the training classes"
        elif f"--set {entry.head}=" in entry.command:
            how = "given by hand, see the commands"
        else:
            how = "published, or scikit-learn's default: not tuned on any of these data"
        ways.setdefault(how, {})[entry.head] = None
    if not ways:
        return "None of these heads has a setting."
    lines = [f"- {', '.join(heads)}: {how}." for how, heads in ways.items()]
    return "\n".join(["Where their settings come from:", "", *lines])


def _law(law: TaskLaw) -> str:
    terms = ((law.shots, "ln k"), (law.ways, "ln N"))  # 0 where all tasks have the same k or N
    return " ".join([f"{law.constant:.4f}", *(f"{factor:+.4f} {name}" for factor, name in terms if factor)])


def _calibration(calibration: Calibration | None) -> str:
    if calibration is None:
        return ""
    shots, ways = (f"{least:g} to {most:g}" for least, most in (calibration.shots, calibration.ways))
    seed, worse, apart = calibration.seed, "", ""
    if found := made_worse(calibration):
        worse = f"\n{found}\n"
    if any(task.data is not None for task in calibration.tasks):
        apart = (
            " Every data set is measured with laws fitted to the others alone;\nthose recorded are "
            "fitted to all of them."
        )
    temperature, unknown = _law(calibration.log_temperature), _law(calibration.unknown)
    if calibration.unknown_relative:
        unknown += "\nabove the similarity of its images to their nearest other class"
    header, rows = suspects_table(calibration)
    suspects = (
        f"\nSupport images with wrong labels, as a report lists them:\n\n{markdown(header, rows)}\n" if rows else ""
    )
    return f"""
## Calibration

On {calibration.split} classes: fitted to {calibration.episodes} episodes of each task with seed
{seed}, measured on as many others with seed {seed + 1}; {calibration.queries} queries a
class.{apart}

    {calibration.command}

For k images a class (the harmonic mean where they differ) and N classes the temperature is
exp({temperature}), with k kept within {shots} and N within {ways}.
Expected calibration error in 15 bins:

{markdown(*calibration_table(calibration))}
{worse}
Images of classes outside the task, told by how like their likeliest class they are. The threshold
comes from the images of the task; where these are too few it is {unknown}:

{markdown(*unknown_table(calibration))}
{suspects}"""
