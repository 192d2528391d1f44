"""Lines and columns for people."""

import re
from collections.abc import Sequence

from comln_serve.client.results import Classifier, ClassifierDetail, Report, Skipped

MOST_LISTED = 20
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


def described(made: ClassifierDetail, files: Sequence[str] = ()) -> str:
    """A classifier and what its report says, in lines.

    Args:
        files: of example 1, 2 and so on; suspects are named by them. Others are named by their numbers.
    """
    images = sum(item.examples for item in made.classes)
    state = "" if made.name is None else ", promoted" if made.promoted else ", not promoted"
    lines = [
        f"{made.reference} ({made.id}): {len(made.classes)} classes, {images} images, model {made.model}{state}"
        if made.name is not None
        else f"{made.id}: {len(made.classes)} classes, {images} images, model {made.model}"
    ]
    lines.append(f"horizon: {horizon_of_one(made)}")
    report = made.report
    if report is None:
        return "\n".join(lines)
    lines += _expected(report, files)
    lines += map(shown, report.notes)
    lines += _groups("one photo, different labels", report.contradictory, files)
    lines += _groups("nearly the same", report.near_duplicates, files)
    return "\n".join(lines)


def _groups(what: str, groups: Sequence[Sequence[int]], files: Sequence[str]) -> list[str]:
    """Lines of groups of examples whose files are known."""
    known = [group for group in groups if max(group) <= len(files)]
    lines: list[str] = []
    for group in known[:MOST_LISTED]:
        first = ", ".join(files[number - 1] for number in group[:_MOST_OF_A_GROUP])
        rest = len(group) - _MOST_OF_A_GROUP
        lines.append(shown(f"  {what}: {first}{f' and {rest} more' if rest > 0 else ''}"))
    if len(known) > MOST_LISTED:
        lines.append(f"  and {len(known) - MOST_LISTED} more groups (--json lists all)")
    return lines


def horizon_of_one(classifier: Classifier) -> str:
    """T of a classifier, and how it was set."""
    return f"{classifier.horizon:.4g} ({classifier.horizon_rule})"


def _expected(report: Report, files: Sequence[str]) -> list[str]:
    """Lines of the accuracy to expect and of images that look mislabelled."""
    held = report.held_out
    if held is None:
        return []
    judged = f"of {held.judged} images classified without themselves"
    lines = [f"expected accuracy: {percent(held.accuracy)} ({interval(held.interval)}), {judged}"]
    if held.suspects:
        lines.append(f"{_count(len(held.suspects), 'image looks', 'images look')} mislabelled:")
        for item in held.suspects[:MOST_LISTED]:
            which = files[item.number - 1] if item.number <= len(files) else f"example {item.number}"
            lines.append(shown(f"  {which}: {item.label}, or rather {item.likelier} ({percent(item.score)})"))
        if len(held.suspects) > MOST_LISTED:
            lines.append(f"  and {len(held.suspects) - MOST_LISTED} more (--json lists all)")
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
