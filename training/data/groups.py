"""Groups of images that must not be in both the support and the query set of an episode.

Frames of one video, crops of one photo or photos of one object are nearly the same image. With one
of them in the support set, a query of the same group is too easy: the accuracy would be too high.
"""

import re
from dataclasses import replace

import numpy as np

from training.data.images import DataError, ImageSet


def group_images(data: ImageSet, pattern: str) -> ImageSet:
    r"""`data` with its images grouped by their file names.

    Args:
        pattern: a regular expression, searched for in every file name (without its folders). Images
            of a class belong to one group if the first group of the match, or the whole match if
            the expression has no group, is the same text. An image without a match is a group of
            its own. "^\d{5}" groups by the first five digits.
    """
    if data.files is None:
        raise DataError(f"the images come in arrays, without file names that {pattern!r} could group")
    expression = re.compile(pattern)
    groups = np.arange(len(data.files))  # a group is numbered by its first image
    matched = False
    for members in data.members:
        firsts: dict[str, int] = {}
        for image in members.tolist():
            match = expression.search(data.files[image])
            if match is not None:
                matched = True
                text = match[1] if expression.groups and match[1] is not None else match[0]
                groups[image] = firsts.setdefault(text, image)
    if not matched:
        raise DataError(f"no file name matches the group expression {pattern!r}; the first is {data.files[0]!r}")
    return replace(data, groups=groups)
