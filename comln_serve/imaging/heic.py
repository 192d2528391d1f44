"""Opens a HEIC file. Imported only where one has come, as pillow-heif is optional."""

from pillow_heif import HeifImageFile


class PrimaryPicture(HeifImageFile):
    """The primary picture of a HEIC file.

    pillow-heif reads the metadata of every picture in the file, even where hundreds share one megabyte, and a large
    image would wait with them. Only those of the primary picture are kept, and once.
    """

    def _open(self) -> None:
        super()._open()
        for picture in self._heif_file or ():
            if picture.info is not self.info:
                picture.info.clear()
        self.info.pop("metadata", None)
