"""Images stored as one file each."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from hirl.data.sources.decode import MAX_BYTES
from hirl.data.sources.image_set import BadImage, ImageSet, LabelNames


class PackedNames:
    """An immutable list of file names, which may contain any bytes, in one block.

    A million of them are sent to a worker process in milliseconds, and reading them does not touch a million reference
    counts, which would copy the memory of forked workers.
    """

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._block = b"".join(encoded)
        self._ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)  # (N,)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = int(self._ends[index - 1]) if index else 0
        return os.fsdecode(self._block[start : int(self._ends[index])])


class FileImages(ImageSet):
    """Files given by folder number and name."""

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
        self._folders = tuple(folders)
        self._folder_of = folder_of.astype(np.int32)  # (N,)
        self._names = PackedNames(file_names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def has_files(self) -> bool:
        return True

    def path(self, index: int) -> str:
        return f"{self._folders[self._folder_of[index]]}/{self._names[index]}"

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


def open_files(
    paths: Sequence[str], *, name: str, channels: int = 3, labels: Tensor | None = None, label_names: LabelNames = ()
) -> FileImages:
    """The files at these paths, in this order."""
    parts = [os.path.split(path) for path in paths]
    folders = {folder: number for number, folder in enumerate(dict.fromkeys(folder for folder, _ in parts))}
    return FileImages(
        name=name,
        folders=[folder or "." for folder in folders],
        folder_of=np.array([folders[folder] for folder, _ in parts]),
        file_names=[file_name for _, file_name in parts],
        channels=channels,
        labels=labels,
        label_names=label_names,
    )
