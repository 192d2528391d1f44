"""Sends many images in several requests, each within the server's limits."""

import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from comln_serve.client.asking import known_limits
from comln_serve.client.errors import BadImageError, ComlnError, InputError
from comln_serve.client.folders import in_turns
from comln_serve.client.images import Prepared, Source, prepare
from comln_serve.client.results import Limits, Rejected, Rejections, Skipped
from comln_serve.client.session import Session
from comln_serve.client.wire import parse

OnBad: TypeAlias = Literal["skip", "raise"]
"""What an image that cannot be used means: it is left out and reported, or the call fails with BadImageError."""

SendCut: TypeAlias = Callable[[Sequence[Prepared], bool], Awaitable[tuple[Rejected, ...]]]
"""Sends one cut; the flag says whether others follow. Returns the images that the server went on without."""

# Images read, shrunk and encoded at a time, by as many threads as pay: Pillow works without the GIL.
_AT_ONCE, _THREADS = 32, 8
# A request has to arrive within a minute (--max-receive-seconds): 32 MiB do at 4.5 Mbit/s.
_CUT_BYTES = 32 * 2**20
# Of a form, beside its images and labels: metadata. At most a quarter, as few forms have so much.
_BODY_BYTES_BESIDE = 64 * 1024
# Of a form, beside an image file: its part's head, and the label's part.
_BYTES_BESIDE = 1024


class Cuts:
    """The images of one call, and which of them have been sent.

    Attributes:
        images: all of them.
        skipped: images that were left out, those given at first included.
        done: number of images that the server has taken.
        total: number of images of the call.
        partial: whether requests go on without images that cannot be used.
    """

    def __init__(
        self,
        session: Session,
        images: Sequence[Source],
        on_bad: OnBad,
        skipped: Sequence[Skipped] = (),
        *,
        show: bool | None = False,
        every_class: bool = False,
        most: int = sys.maxsize,
    ) -> None:
        """Prepare nothing yet.

        Args:
            on_bad: InputError is raised if it is neither, or "raise" where files were skipped.
            skipped: files of a folder that are no images.
            show: a bar on standard error; None: if that is a terminal.
            every_class: they make a classifier; no class may lose all its images.
            most: images of a cut, should the server take more.
        """
        if on_bad not in get_args(OnBad):
            raise InputError(f"on_bad is {on_bad!r}; give 'skip' or 'raise'")
        if skipped and on_bad == "raise":
            first = skipped[0]
            raise InputError(
                f"{first.image} {first.reason} ({len(skipped)} such files); remove it, or skip bad files with "
                "on_bad='skip' (--on-bad skip)"
            )
        self.skipped = list(skipped)
        self._skipped_before = len(skipped)
        self.session, self.images = session, images
        self.done, self.total = 0, len(images)
        self.partial = on_bad == "skip"
        self._left = Counter(item.label for item in images) if every_class else None
        self._show, self._most = show, most
        self._rest = deque(images)
        self._waiting: deque[Prepared] = deque()
        self._advance: Callable[[int], object] = lambda _images: None

    async def send(self, send_cut: SendCut) -> None:
        """Send all images in order; support images that take several requests, with their classes in turns.

        Raises:
            BadImageError: an image cannot be used, and such images are not to be skipped.
            InputError: more images or classes than a classifier may have, or no image, or none of a class, can be used.
            ComlnError: a cut failed, and would in smaller requests, too.
        """
        sent = False
        limits = await known_limits(self.session)
        self._check(limits)
        if len(self._rest) > limits.max_images:
            self._mix()
        while True:
            limits = await known_limits(self.session)  # a cut may have narrowed them
            await self._prepare(limits)
            cut = self._take(limits)
            if not cut:
                break
            if not self.done and self._lacks_classes(cut):  # few fit by their bytes, or a proxy takes few
                self._waiting.extendleft(reversed(cut))
                self._mix()
                continue
            try:
                rejected = await send_cut(cut, bool(self._waiting or self._rest))
            except ComlnError as error:
                usable = self._without_bad(cut, error)
                if len(usable) == len(cut) and not self._narrow(limits, cut, error):
                    raise
                self._waiting.extendleft(reversed(usable))
            else:
                sent = True
                self._skip_all(cut, rejected)
                self.done += len(cut) - len(rejected)
                self._advance(len(cut) - len(rejected))
        if not sent:
            first = self.skipped[self._skipped_before]
            none = "" if self.total == 1 else f"none of the {self.total} images can be used; the first: "
            raise InputError(f"{none}{first.image}: {first.reason}")

    def _check(self, limits: Limits) -> None:
        """Refuse what the server would refuse after thousands of images were sent."""
        if self._left is None:
            return
        for what, given, allowed, setting in (
            ("images", self.total, limits.max_examples, "--max-examples"),
            ("classes", len(self._left), limits.max_classes, "--max-classes"),
        ):
            if given > allowed:
                raise InputError(
                    f"a classifier would have {given} {what}; at most {allowed} are allowed (the server's setting "
                    f"{setting})"
                )

    def _lacks_classes(self, cut: Sequence[Prepared]) -> bool:
        """Whether a cut has images of fewer classes than it could have."""
        if self._left is None:
            return False
        every = {image.label for image in (*cut, *self._waiting, *self._rest)}
        return len({image.label for image in cut}) < min(len(cut), len(every))

    def _mix(self) -> None:
        """Put classes in turns, where there are classes. The first request makes the classifier: it must have two
        classes, and all classes of a model that is tied to a number of them.
        """
        if self._left is not None:
            self._rest = deque(in_turns([*self._waiting, *self._rest]))
            self._waiting.clear()

    @contextmanager
    def bar(self, title: str) -> Generator[None, None, None]:
        """Show a bar during the block, where one is to be shown."""
        # A program without a console, or with its standard error closed, has None there.
        if sys.stderr is None or not (sys.stderr.isatty() if self._show is None else self._show):
            yield
            return
        from tqdm import tqdm  # noqa: PLC0415 - only where there is something to show

        with tqdm(total=self.total, desc=title, unit=" images", file=sys.stderr) as bar:
            self._advance = bar.update
            yield

    async def _prepare(self, limits: Limits) -> None:
        """Prepare images until more wait than one cut holds, or all are prepared."""
        most, room = min(limits.max_images, self._most), _room(limits)
        while self._rest and len(self._waiting) <= most and sum(map(_size, self._waiting)) <= room:
            batch = [self._rest.popleft() for _ in range(min(_AT_ONCE, len(self._rest)))]
            formats = limits.image_formats
            ready = await self.session.call(_prepare_all, batch, self.session.max_side, formats)
            for source, found in zip(batch, ready, strict=True):
                if isinstance(found, BadImageError):
                    self._skip(found, source.label)
                elif len(found.content) > limits.max_image_bytes:
                    reason = f"has {len(found.content)} bytes; the server allows {limits.max_image_bytes}"
                    self._skip(BadImageError(found.name, reason, code="image_too_large"), source.label)
                else:
                    self._waiting.append(found)

    def _take(self, limits: Limits) -> list[Prepared]:
        cut: list[Prepared] = []
        size = 0
        while self._waiting and len(cut) < min(limits.max_images, self._most):
            size += _size(self._waiting[0])
            if cut and size > _room(limits):
                break
            cut.append(self._waiting.popleft())
        return cut

    def _narrow(self, limits: Limits, cut: Sequence[Prepared], error: ComlnError) -> bool:
        """Halve further cuts after one was too large for a proxy, the time or its answer. False if that cannot help."""
        allowed = error.detail.get("allowed_images")
        of_classifier = isinstance(allowed, int) and allowed >= len(cut)
        if len(cut) == 1 or error.status not in (408, 413) or of_classifier:
            return False
        self.session.limits = replace(limits, max_images=(len(cut) + 1) // 2)
        return True

    def _without_bad(self, cut: Sequence[Prepared], error: ComlnError) -> list[Prepared]:
        """The images of a refused cut without those that it was refused for. Raises BadImageError if these may not be
        skipped.
        """
        if self.partial:
            rejected = parse(Rejections, dict(error.detail)).rejected
            self._skip_all(cut, rejected)
            left_out = {one.index for one in rejected}
            return [item for position, item in enumerate(cut) if position not in left_out]
        position = error.detail.get("image")
        if error.code in ("invalid_image", "image_too_large") and isinstance(position, int) and position < len(cut):
            # The server counts the images of the request, which the caller never saw.
            reason = error.message.partition(": ")[2] if error.message.startswith("Image ") else error.message
            facts = {"code": error.code, "detail": error.detail, "status": error.status, "request_id": error.request_id}
            raise BadImageError(cut[position].name, reason, **facts)
        return list(cut)

    def _skip_all(self, cut: Sequence[Prepared], rejected: Sequence[Rejected]) -> None:
        for one in rejected:
            image = cut[one.index]
            self._skip(BadImageError(image.name, one.message), image.label)

    def _skip(self, error: BadImageError, label: str | None) -> None:
        if not self.partial:
            raise error
        self.skipped.append(Skipped(image=error.image, reason=error.reason))
        self._advance(1)
        if self._left is None:
            return
        self._left[label] -= 1
        if not self._left[label]:
            raise InputError(
                f"no image of class {label!r} can be used; add one, or leave the class out; the last of them: "
                f"{error.image}: {error.reason}"
            ) from error


def _prepare_all(
    batch: Sequence[Source], max_side: int | None, formats: Collection[str]
) -> list[Prepared | BadImageError]:
    def one(source: Source) -> Prepared | BadImageError:
        try:
            return prepare(source, max_side, formats)
        except BadImageError as error:
            return error

    with ThreadPoolExecutor(min(_THREADS, len(batch))) as threads:
        return list(threads.map(one, batch))


def _room(limits: Limits) -> int:
    """Most bytes of a cut."""
    return min(_CUT_BYTES, max(limits.max_body_bytes - _BODY_BYTES_BESIDE, limits.max_body_bytes * 3 // 4))


def _size(image: Prepared) -> int:
    return len(image.content) + _BYTES_BESIDE
