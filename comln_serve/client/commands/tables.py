"""Lines and columns for people."""

import re
from collections.abc import Mapping, Sequence

from comln_serve.client.results import Classifier, ClassifierDetail, Skipped

MOST_LISTED = 20
# Of a report: with more of each, the accuracy would scroll away.
_MOST_OF_REPORT = 5
_MOST_OF_A_GROUP = 3


def shown(text: str) -> str:
    r"""A file's name or a label on one line: control characters, which a terminal would obey, as \n, \x1b and so on."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: found[0].encode("unicode_escape").decode(), text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns under their titles."""
    lines = [list(head), *([shown(text) for text in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def percent(share: float) -> str:
    """A share as 95.8 %."""
    return f"{100 * share:.1f} %"


def interval(ends: tuple[float, float]) -> str:
    """A 95% interval of a share."""
    return f"95% interval {percent(ends[0])} to {percent(ends[1])}"


def described(made: ClassifierDetail, files: Mapping[int, str] | None = None, changes: Sequence[str] = ()) -> str:
    """A classifier and what its report says, in lines.

    Args:
        files: of examples, by number; they are named by these. If all are known, the numbers are left out.
        changes: lines of what was changed, to be shown beside the accuracy.
    """
    images = sum(item.examples for item in made.classes)
    state = "" if made.name is None else ", promoted" if made.promoted else ", not promoted"
    lines = [
        f"{made.reference} ({made.id}): {len(made.classes)} classes, {images} images, model {made.model}{state}"
        if made.name is not None
        else f"{made.id}: {len(made.classes)} classes, {images} images, model {made.model}"
    ]
    lines.append(f"horizon: {horizon_of_one(made)}")
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
    lines += map(shown, report.notes)
    lines += _groups("one photo, different labels", report.contradictory, names)
    lines += _groups("nearly the same", report.near_duplicates, names)
    return "\n".join(lines)


class _Names:
    """What the examples of a classifier are called."""

    def __init__(self, made: ClassifierDetail, files: Mapping[int, str]) -> None:
        """Note the files that are known, by number."""
        self._files = files
        self._numbered = len(files) < sum(item.examples for item in made.classes)
        self.all_of = f"(comln classifiers show {made.reference} --json lists all)"

    def __contains__(self, number: int) -> bool:
        return number in self._files

    def of(self, number: int) -> str:
        """An example's number, its file, or both where some files are not known."""
        file = self._files.get(number)
        if file is None:
            return f"example {number}"
        return f"example {number} ({file})" if self._numbered else file


def _groups(what: str, groups: Sequence[Sequence[int]], names: _Names) -> list[str]:
    """Lines of groups of examples of which files are known; of each group these come first."""
    known = [group for group in groups if any(number in names for number in group)]
    lines: list[str] = []
    for group in known[:_MOST_OF_REPORT]:
        known_first = sorted(group, key=lambda number: number not in names)
        first = ", ".join(map(names.of, known_first[:_MOST_OF_A_GROUP]))
        rest = len(group) - _MOST_OF_A_GROUP
        lines.append(shown(f"  {what}: {first}{f' and {rest} more' if rest > 0 else ''}"))
    if len(known) > _MOST_OF_REPORT:
        lines.append(f"  and {_count(len(known) - _MOST_OF_REPORT, 'more group', 'more groups')} {names.all_of}")
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
    for item in held.suspects[:_MOST_OF_REPORT]:
        which = f"{names.of(item.number)}: {item.label}, or rather {item.likelier}"
        lines.append(shown(f"  {which} ({percent(item.score)})"))
    if len(held.suspects) > _MOST_OF_REPORT:
        lines.append(f"  and {len(held.suspects) - _MOST_OF_REPORT} more {names.all_of}")
    return lines


def left_out(skipped: Sequence[Skipped]) -> str:
    """The files that were skipped, each with its reason."""
    lines = [f"{_count(len(skipped), 'file was', 'files were')} skipped:"]
    lines += [shown(f"  {item.image}: {item.reason}") for item in skipped[:MOST_LISTED]]
    if len(skipped) > MOST_LISTED:
        lines.append(f"  and {len(skipped) - MOST_LISTED} more (--json lists all)")
    return "\n".join(lines)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
