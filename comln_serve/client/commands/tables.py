"""Lines and columns for people."""

import re
from collections.abc import Mapping, Sequence
from unicodedata import combining, east_asian_width

from comln_serve.client.commands.hints import command_line
from comln_serve.client.results import Classifier, ClassifierDetail, Skipped

_MOST_LISTED = 20
# Of a report: with more of each, the accuracy would scroll away.
_MOST_OF_REPORT = 5
_MOST_OF_A_GROUP = 3
# What the report's note of such photos has, and no other.
_CONTRADICTORY = " sent under different labels: "


def shown(text: str) -> str:
    r"""A file's name or a label on one line: control characters, which a terminal would obey, as \n, \x1b and so on."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: found[0].encode("unicode_escape").decode(), text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns under their titles."""
    lines = [list(head), *([shown(text) for text in row] for row in rows)]
    widths = [max(_columns(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(text + " " * (width - _columns(text)) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _columns(text: str) -> int:
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


def described(made: ClassifierDetail, files: Mapping[int, str] | None = None, changes: Sequence[str] = ()) -> str:
    """A classifier and what its report says, in lines.

    Args:
        files: of examples, by number; they are named beside the numbers.
        changes: lines of what was changed, to be shown beside the accuracy.
    """
    images = sum(item.examples for item in made.classes)
    state = "" if made.name is None else ", promoted" if made.promoted else ", not promoted"
    known = made.id if made.name is None else f"{made.reference} ({made.id})"
    lines = [
        f"{known}: {len(made.classes)} classes, {images} images, model {made.model}{state}",
        f"horizon: {horizon_of_one(made)}",
    ]
    if made.expires_at is not None:
        lines.append(f"expires: {made.expires_at:%Y-%m-%d %H:%M} UTC")
    lines += [shown(f"{key}: {value}") for key, value in made.metadata.items()]
    report = made.report
    if report is None:
        return "\n".join([*lines, *changes])
    if report.held_out is not None:
        held = report.held_out
        judged = f"of {held.judged} images classified without themselves"
        lines.append(f"expected accuracy: {percent(held.accuracy)} ({interval(held.interval)}), {judged}")
    lines += changes
    names = _Names(made, files or {})
    lines += _suspects(made, names)
    contradictory = names.known(report.contradictory)
    # All of them are named below then, with the files that are known.
    lines += [shown(note) for note in report.notes if not (contradictory and _CONTRADICTORY in note)]
    lines += _groups("one photo, different labels", report.contradictory if contradictory else (), names)
    lines += _groups("nearly the same", names.known(report.near_duplicates), names)
    return "\n".join(lines)


class _Names:
    """What the examples of a classifier are called."""

    def __init__(self, made: ClassifierDetail, files: Mapping[int, str]) -> None:
        """Note the files that are known, by number."""
        self._files = files
        self.all_of = f"({command_line('classifiers show --json', made.reference)} lists all)"

    def __contains__(self, number: int) -> bool:
        return number in self._files

    def of(self, number: int) -> str:
        """An example's number, by which commands take it, and its file, if it is known."""
        file = self._files.get(number)
        return f"example {number}" if file is None else f"example {number} ({file})"

    def known(self, groups: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """The groups of examples of which files are known."""
        return [group for group in groups if any(number in self for number in group)]


def _groups(what: str, groups: Sequence[Sequence[int]], names: _Names) -> list[str]:
    """Lines of groups of examples, of which those with known files come first; so do these in each group."""
    known_first = sorted(groups, key=lambda group: not names.known([group]))
    lines: list[str] = []
    for group in known_first[:_MOST_OF_REPORT]:
        members = sorted(group, key=lambda number: number not in names)
        first = ", ".join(map(names.of, members[:_MOST_OF_A_GROUP]))
        rest = len(group) - _MOST_OF_A_GROUP
        lines.append(shown(f"  {what}: {first}{f' and {rest} more' if rest > 0 else ''}"))
    if len(groups) > _MOST_OF_REPORT:
        lines.append(f"  and {_count(len(groups) - _MOST_OF_REPORT, 'more group', 'more groups')} {names.all_of}")
    return lines


def horizon_of_one(classifier: Classifier) -> str:
    """T of a classifier, and how it was set."""
    return f"{classifier.horizon:.4g} ({classifier.horizon_rule})"


def _suspects(made: ClassifierDetail, names: _Names) -> list[str]:
    """Lines of images that look mislabelled."""
    held = made.report.held_out if made.report else None
    if held is None or not held.suspects:
        return []
    lines = [f"{_count(len(held.suspects), 'image looks', 'images look')} mislabelled:"]
    listed = held.suspects[:_MOST_OF_REPORT]
    for item in listed:
        which = f"{names.of(item.number)}: {item.label}, or rather {item.likelier}"
        lines.append(shown(f"  {which} ({percent(item.score)})"))
    if len(held.suspects) > len(listed):
        lines.append(f"  and {len(held.suspects) - len(listed)} more {names.all_of}")
    which = "it" if len(listed) == 1 else "them" if len(listed) == len(held.suspects) else f"these {len(listed)}"
    reference = made.name if made.name is not None and made.promoted else made.reference
    # Correcting a version that its name does not stand for must not promote it.
    options = " --no-promote" if made.name is not None and not made.promoted else ""
    first = listed[0]
    correct = command_line(f"examples relabel{options}", reference, first.likelier, str(first.number))
    lines.append(shown(f"  to correct {'it' if len(held.suspects) == 1 else 'the first'}: {correct}"))
    remove = command_line(f"examples rm{options}", reference, *(str(item.number) for item in listed))
    lines.append(shown(f"  to remove {which}: {remove}"))
    return lines


def left_out(skipped: Sequence[Skipped]) -> str:
    """The files that were skipped, each with its reason."""
    files = first_of([f"{item.image}: {item.reason}" for item in skipped])
    return "\n".join([f"{_count(len(skipped), 'file was', 'files were')} skipped:", *files])


def first_of(items: Sequence[str], most: int = _MOST_LISTED, what: str = "more") -> list[str]:
    """A line for each of the first items, and one that says how many more there are."""
    rest = len(items) - most
    return [
        *(shown(f"  {item}") for item in items[:most]),
        *([f"  and {rest} {what} (--json lists all)"] if rest > 0 else []),
    ]


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
