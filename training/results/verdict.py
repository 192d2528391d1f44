"""Comparisons with other heads, summed up in a sentence or two."""

from collections.abc import Mapping

from training.results.accuracy import Difference

START = "start"
"""The name under which the bundle's own start, without adaptation (T = 0), is compared."""

START_DESCRIPTION = "the bundle's own start without adaptation, T = 0"


def verdict(ahead: Mapping[str, Difference]) -> str:
    """How the bundle compares with other heads, and with its own start if that is among them.

    Args:
        ahead: by head, how far the bundle is ahead of it.
    """
    heads = {name: found for name, found in ahead.items() if name != START}
    sentences = [_compared_with_heads(heads)] if heads else []
    if START in ahead:
        sentences.append(_compared_with_start(ahead[START]))
    return " ".join(sentences)


def _compared_with_heads(heads: Mapping[str, Difference]) -> str:
    ahead, inside, behind = (
        [name for name, found in heads.items() if found.verdict == place] for place in ("ahead", "inside", "behind")
    )
    behind.sort(key=lambda name: heads[name].mean)
    named = ", ".join(f"{name} by {_points(heads[name], -1.0)}" for name in behind)
    return (
        f"The bundle is ahead of {len(ahead)} of {len(heads)} heads, inside the interval of "
        f"{len(inside)}, behind {f'{len(behind)}: {named}' if behind else 'none'}."
    )


def _compared_with_start(found: Difference) -> str:
    if found.verdict == "ahead":
        return f"Adapting adds {_points(found)} points over its own start."
    if found.verdict == "behind":
        return f"Adapting loses {_points(found, -1.0)} points against its own start."
    return f"Adapting makes no difference to its own start that can be told from chance: {found} points."


def _points(found: Difference, sign: float = 1.0) -> str:
    # One digit would print 0.07 +- 0.05 as 0.1 +- 0.1, which looks like nothing.
    digits = 1 if found.interval >= 0.0005 and abs(found.mean) >= 0.001 else 2
    return f"{100 * sign * found.mean:.{digits}f} +- {100 * found.interval:.{digits}f}"
