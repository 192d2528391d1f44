"""What a command has made of a classifier, and what changed against what its name stood for before."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from comln_serve.client.clients import Client
from comln_serve.client.commands.connection import Output, command_line
from comln_serve.client.commands.tables import described, images_in, note_skipped, percent, shown
from comln_serve.client.errors import ComlnError, NotFoundError, listed
from comln_serve.client.results import Adapted, ClassifierDetail

_MOST_LABELS = 5


def promoted_before(client: Client, output: Output, reference: str) -> ClassifierDetail | None:
    """Ask, before a classifier is changed, for what to compare the change with: the version that its name stands for,
    or the classifier itself if it has no name. None if the output is JSON: programs compare by themselves. Raises
    NotFoundError if there is no such classifier.
    """
    if output.as_json:
        return None
    found = client.classifier(reference)
    return found if found.name is None or found.promoted else client.classifier(found.name)


def promoted_if_any(client: Client, output: Output, reference: str) -> ClassifierDetail | None:
    """`promoted_before`, or None where there may be no such classifier yet."""
    with suppress(NotFoundError):
        return promoted_before(client, output, reference)
    return None


def added_files(client: Client, output: Output, made: Adapted) -> dict[int, str]:
    """Files of the examples that were just added, by number. Empty if the output will name no examples."""
    report, held = made.report, made.report and made.report.held_out
    names_some = report and ((held and held.suspects) or report.near_duplicates or report.contradictory)
    if output.as_json or not names_some:
        return {}
    with suppress(ComlnError):  # the examples are added: only their names are missing
        numbers = [item.number for item in client.examples(made)]
        if len(numbers) == images_in(made):  # else somebody has changed a classifier without a name meanwhile
            return dict(zip(numbers[-len(made.images) :], made.images, strict=True))
    return {}


def show_made(
    output: Output, made: Adapted, before: ClassifierDetail | None, files: Mapping[int, str] = {}, *, anew: bool = False
) -> None:
    """Show what was made, what changed, what was left out, and what could not be cleaned up.

    Args:
        before: from `promoted_before`; None: nothing is compared.
        files: of the examples that were sent, by number.
        anew: as of `changed`.
    """
    changes = [] if before is None else changed(before, made, {} if anew else files, anew=anew)
    output.show(made, lambda: described(made, files, changes))
    if made.leftover:
        deletes = command_line("classifiers rm", *made.leftover)
        output.note(f"partial versions could not be deleted: {', '.join(made.leftover)}; {deletes} deletes them")
    note_skipped(output, made.skipped)


def changed(
    before: ClassifierDetail, made: ClassifierDetail, added: Mapping[int, str], *, anew: bool = False
) -> list[str]:
    """Lines of what is different, and how to go back where it got worse.

    Args:
        added: files that were added to the examples of `before`, by number.
        anew: it was made of other images, perhaps by mistake, so say how to go back even if it did not get worse.
    """
    name = before.reference if before.name is not None else f"revision {before.revision}"
    old, new = _accuracy(before), _accuracy(made)
    sizes = f"classes {len(before.classes)} -> {len(made.classes)}, images {images_in(before)} -> {images_in(made)}"
    model = "" if made.model == before.model else f", model {before.model} -> {made.model}"
    replaced = not model and before.embedder_sha256 != made.embedder_sha256
    lines = [f"compared with {name}: expected accuracy {_text(old)} -> {_text(new)}, {sizes}{model}"]
    labels = [
        *_labels("new classes", (label for label in made.labels if label not in before.labels)),
        *_labels("classes that are gone", (label for label in before.labels if label not in made.labels)),
    ]
    if labels:
        lines.append("; ".join(labels))
    if replaced:
        lines.append(f"{name} cannot predict: the network or the preprocessing of {made.model} was replaced since")
    known = _known(made, added)
    if known and 2 * known >= len(added):
        lines.append(f"{known} of {len(added)} images are in it already, or nearly the same photos are")
    if made.name is not None and not made.promoted:
        promote = command_line("classifiers promote", made.reference)
        lines.append(shown(f"{made.name} stands for {name} as before; to let it stand for this version: {promote}"))
    fell = old is not None and new is not None and _text(new) != _text(old) and new < old
    if made.name is not None and made.promoted and not replaced and (anew or fell or known == len(added) > 0):
        lines.append(shown(f"to go back to {name}: {command_line('classifiers rollback', made.name)}"))
    return lines


def _known(made: ClassifierDetail, added: Mapping[int, str]) -> int:
    """How many of the added images are nearly the same photos as examples of their class that were there before."""
    groups = made.report.near_duplicates if made.report else ()
    return sum(number in added for group in groups if any(one not in added for one in group) for number in group)


def _accuracy(classifier: ClassifierDetail) -> float | None:
    held = classifier.report.held_out if classifier.report else None
    return None if held is None else held.accuracy


def _text(accuracy: float | None) -> str:
    return "not known" if accuracy is None else percent(accuracy)


def _labels(what: str, labels: Iterable[str]) -> list[str]:
    found = list(labels)
    return [shown(f"{what}: {listed(found, _MOST_LABELS)}")] if found else []
