"""Lines and columns for people."""

import re
from collections.abc import Mapping, Sequence
from unicodedata import combining, east_asian_width

from comln_serve.client.commands.connection import Output, command_line
from comln_serve.client.errors import listed
from comln_serve.client.results import Classifier, ClassifierDetail, Skipped, Suspect

_MOST_LISTED = 20
# Of a report: with more of each, the accuracy would scroll away.
_MOST_OF_REPORT = 5
_MOST_OF_A_GROUP = 3
# What the report's note of such photos has, and no other.
_CONTRADICTORY = " sent under different labels: "


def shown(text: str) -> str:
    r"""A file's name or a label on one line: control characters, which a terminal would obey, as \n, \x1b and so on."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: found[0].encode("unicode_escape").decode(), text)


def table(columns: Mapping[str, Sequence[str]]) -> str:
    """Columns of texts under their titles."""
    padded: list[list[str]] = []
    for title, texts in columns.items():
        cells = [title, *map(shown, texts)]
        width = max(map(_width, cells))
        padded.append([text + " " * (width - _width(text)) for text in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def _width(text: str) -> int:
    """Columns of a terminal that a text takes: two for each Chinese, Japanese or Korean character or emoji, none for an
    accent that is a character of its own.
    """
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def percent(share: float) -> str:
    """A share as 95.8 %."""
    return f"{100 * share:.1f} %"


def interval(ends: tuple[float, float]) -> str:
    """A 95% interval of a share."""
    return f"95% interval {percent(ends[0])} to {percent(ends[1])}"


def images_in(classifier: Classifier) -> int:
    """Number of images that a classifier was adapted to."""
    return sum(item.examples for item in classifier.classes)


def horizon_of(classifier: Classifier) -> str:
    """T of a classifier, and how it was set."""
    return f"{classifier.horizon:.4g} ({classifier.horizon_rule})"


def described(made: ClassifierDetail, files: Mapping[int, str], changes: Sequence[str] = ()) -> str:
    """A classifier and what its report says, in lines.

    Args:
        files: of examples, by number; they are named beside the numbers, and such examples come first.
        changes: lines of what was changed, to be shown beside the accuracy.
    """
    state = "" if made.name is None else ", promoted" if made.promoted else ", not promoted"
    known = made.id if made.name is None else f"{made.reference} ({made.id})"
    lines = [
        f"{known}: {len(made.classes)} classes, {images_in(made)} images, model {made.model}{state}",
        f"horizon: {horizon_of(made)}",
    ]
    if made.expires_at is not None:
        lines.append(f"expires: {made.expires_at:%Y-%m-%d %H:%M} UTC")
    lines += [shown(f"{key}: {value}") for key, value in made.metadata.items()]
    report = made.report
    if report is None:
        return "\n".join([*lines, *changes])
    held = report.held_out
    if held is not None:
        judged = f"of {held.judged} images classified without themselves"
        lines.append(f"expected accuracy: {percent(held.accuracy)} ({interval(held.interval)}), {judged}")
    lines += changes
    all_of = f"({command_line('classifiers show --json', made.reference)} lists all)"
    if held is not None and held.suspects:
        lines += _suspects(made, held.suspects, files, all_of)
    contradictory = _known(report.contradictory, files)
    # All of them are named below then, with the files that are known.
    lines += [shown(note) for note in report.notes if not (contradictory and _CONTRADICTORY in note)]
    lines += _groups("one photo, different labels", report.contradictory if contradictory else (), files, all_of)
    lines += _groups("nearly the same", _known(report.near_duplicates, files), files, all_of)
    return "\n".join(lines)


def _example(number: int, files: Mapping[int, str]) -> str:
    """An example's number, by which commands take it, and its file, if it is known."""
    return f"example {number} ({files[number]})" if number in files else f"example {number}"


def _known(groups: Sequence[Sequence[int]], files: Mapping[int, str]) -> list[Sequence[int]]:
    """The groups of examples of which files are known."""
    return [group for group in groups if not files.keys().isdisjoint(group)]


def _groups(what: str, groups: Sequence[Sequence[int]], files: Mapping[int, str], all_of: str) -> list[str]:
    """Lines of groups of examples, of which those with known files come first; so do these in each group."""
    lines: list[str] = []
    for group in sorted(groups, key=files.keys().isdisjoint):
        members = [_example(number, files) for number in sorted(group, key=lambda number: number not in files)]
        lines.append(f"{what}: {listed(members, _MOST_OF_A_GROUP)}")
    more = "more group" if len(lines) == _MOST_OF_REPORT + 1 else "more groups"
    return first_of(lines, _MOST_OF_REPORT, more, all_of)


def _suspects(made: ClassifierDetail, suspects: Sequence[Suspect], files: Mapping[int, str], all_of: str) -> list[str]:
    """Lines of images that look mislabelled."""
    texts = [
        f"{_example(item.number, files)}: {item.label}, or rather {item.likelier} ({percent(item.score)})"
        for item in suspects
    ]
    lines = [f"{_count(len(suspects), 'image looks', 'images look')} mislabelled:"]
    lines += first_of(texts, _MOST_OF_REPORT, where=all_of)
    first = suspects[:_MOST_OF_REPORT]
    which = "it" if len(first) == 1 else "them" if len(first) == len(suspects) else f"these {len(first)}"
    reference = made.name if made.name is not None and made.promoted else made.reference
    # Correcting a version that its name does not stand for must not promote it.
    options = " --no-promote" if made.name is not None and not made.promoted else ""
    correct = command_line(f"examples relabel{options}", reference, first[0].likelier, str(first[0].number))
    lines.append(shown(f"  to correct {'it' if len(suspects) == 1 else 'the first'}: {correct}"))
    remove = command_line(f"examples rm{options}", reference, *(str(item.number) for item in first))
    lines.append(shown(f"  to remove {which}: {remove}"))
    return lines


def note_skipped(output: Output, skipped: Sequence[Skipped]) -> None:
    """Tell a person which files were skipped, each with its reason; JSON has them."""
    if skipped and not output.as_json:
        files = first_of([f"{item.image}: {item.reason}" for item in skipped])
        output.note("\n".join([f"{_count(len(skipped), 'file was', 'files were')} skipped:", *files]))


def first_of(
    items: Sequence[str], most: int = _MOST_LISTED, what: str = "more", where: str = "(--json lists all)"
) -> list[str]:
    """A line for each of the first items, and one that says how many more there are, and where."""
    lines = [shown(f"  {item}") for item in items[:most]]
    rest = len(items) - most
    return [*lines, f"  and {rest} {what} {where}"] if rest > 0 else lines


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
