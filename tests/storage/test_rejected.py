"""What is stored of the images that a request with an idempotency key went on without."""

import json

from comln_serve.domain.rejected import Rejected, apart, together
from comln_serve.errors import ErrorCode

SAID = "The image is not base64."


def test_what_is_said_of_many_images_is_stored_once() -> None:
    many = [Rejected(index, ErrorCode.INVALID_REQUEST, SAID, {}) for index in range(511)]
    other = Rejected(200, ErrorCode.INVALID_IMAGE, SAID, {"allowed_formats": ["JPEG"]})
    rejected = (*many[:200], other, *many[201:])
    stored = json.dumps(together(rejected))
    assert stored.count(SAID) == 2
    assert len(stored) < 4000
    assert apart(json.loads(stored)) == rejected


def test_no_more_is_stored_than_a_few_kilobytes() -> None:
    """Different things are said of all images: of those that fit all is kept, of the others the code."""
    codes = ErrorCode.INVALID_IMAGE, ErrorCode.IMAGE_TOO_LARGE
    rejected = tuple(Rejected(index, codes[index % 2], f"{index} {SAID * 9}", {"n": index}) for index in range(511))
    stored = json.dumps(together(rejected))
    assert 16_000 < len(stored) < 21_000
    replayed = apart(json.loads(stored))
    assert [(one.index, one.code) for one in replayed] == [(one.index, one.code) for one in rejected]
    whole = [one for one, first in zip(replayed, rejected, strict=True) if one == first]
    assert len(whole) > 40
    assert all("The first answer" in one.message for one in replayed[len(whole) :])


def test_rows_that_have_each_image_by_itself_are_read() -> None:
    rejected = tuple(Rejected(index, ErrorCode.INVALID_IMAGE, f"said of {index}", {"n": index}) for index in (0, 3))
    assert apart([one.facts() for one in rejected]) == rejected
    assert apart([]) == ()
