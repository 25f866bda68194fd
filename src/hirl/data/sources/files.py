"""Images stored as one file each."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from hirl.data.sources.decode import MAX_BYTES
from hirl.data.sources.image_set import BadImage, ImageSet, LabelNames


class FileImages(ImageSet):
    """Files given by folder number and name.

    The names are stored in one block of bytes: a million of them are sent to a worker process in milliseconds, and
    reading them does not touch a million reference counts, which would copy the memory of forked workers.
    """

    def __init__(
        self,
        *,
        name: str,
        folders: Sequence[str],
        folder_of: np.ndarray,
        file_names: Sequence[str],
        channels: int = 3,
        labels: Tensor | None = None,
        label_names: LabelNames = (),
    ) -> None:
        super().__init__(name=name, channels=channels, labels=labels, label_names=label_names)
        encoded = [os.fsencode(file_name) for file_name in file_names]
        self._folders = tuple(folders)
        self._folder_of = folder_of.astype(np.int32)  # (N,)
        self._names = b"".join(encoded)
        self._ends = np.cumsum([len(file_name) for file_name in encoded], dtype=np.int64)  # (N,)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def has_files(self) -> bool:
        return True

    def path(self, index: int) -> str:
        start = int(self._ends[index - 1]) if index else 0
        file_name = os.fsdecode(self._names[start : int(self._ends[index])])
        return f"{self._folders[self._folder_of[index]]}/{file_name}"

    def read(self, index: int, *, shorter: int | None = None) -> Tensor:
        self._check(index)
        path = self.path(index)
        try:
            status = Path(path).stat()
            if not stat.S_ISREG(status.st_mode):  # reading a pipe or device would never end
                raise BadImage(index, path, "it is not a regular file")
            if status.st_size > MAX_BYTES:
                raise BadImage(index, path, f"{status.st_size:,} bytes exceed the limit of {MAX_BYTES:,}")
            data = Path(path).read_bytes()
        except OSError as error:
            raise BadImage(index, path, error.strerror or type(error).__name__) from error
        return self._decode(data, index, shorter)
