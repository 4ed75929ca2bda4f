"""MedMNIST: one archive per data set, found locally or downloaded from Zenodo."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flfa_app.data.declaration import DatasetReader, DatasetSource, RawDataset
from flfa_app.data.formats.npz import find_npz
from flfa_app.data.sources.common import find_common_format, missing_dataset_text


class MedMNIST(DatasetSource):
    """The official file of 28x28 pixels."""

    def find(self, data_dir: str, image_size: int) -> DatasetReader:
        """Find the archive; download it if it is missing."""
        root = Path(data_dir or "~/.medmnist").expanduser()
        cure = f"delete it and download it again from {self.url}"
        reader = find_common_format(self.name, root, None, cure)
        if reader is None:
            path = root / f"{self.name}.npz"
            download = f"download it from {self.url}"
            text = missing_dataset_text(self.name, (), root, download)
            _download(self.name, path, text)
            reader = find_npz(path, None, cure)
        # Some of the data sets have the same form: only the file name tells them apart.
        other = Path(reader.location).stem
        if other != self.name and other in {source.name for source in SOURCES}:
            raise ValueError(
                f"dataset is {self.name!r}, but data-dir leads to {reader.location}; "
                f"set dataset to {other!r}, or data-dir to the folder of "
                f"{self.name}.npz ({self.url})"
            )

        def read() -> RawDataset:
            # Imported here because it takes seconds; a filled cache needs no reading.
            import medmnist

            dataset = reader.read()
            names = medmnist.INFO[self.name]["label"]
            # Another number of classes stays, for `verify` to report it.
            if len(dataset.class_names) != len(names):
                return dataset
            in_order = tuple(names[str(label)] for label in range(len(names)))
            return replace(dataset, class_names=in_order)

        return replace(reader, read=read)


def _download(name: str, path: Path, missing_text: str) -> None:
    import medmnist

    package_class = getattr(medmnist, medmnist.INFO[name]["python_class"])
    folders = (path.parent, *path.parent.parents)
    created = [folder for folder in folders if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The file gets its name when it is complete.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            package_class(split="train", download=True, root=folder)
            Path(folder, path.name).replace(path)
    except (OSError, RuntimeError) as problem:
        # A typing error in `data-dir` leaves no folders.
        with suppress(OSError):  # one was never created, or another process uses it
            for empty in created:
                empty.rmdir()
        cause = problem.__context__ or problem
        raise FileNotFoundError(
            f"{missing_text}. The medmnist package has failed to download it: "
            f"{type(cause).__name__}: {cause}"
        ) from problem


def _declare(
    display_name: str, train: int, test: int, channels: int, classes: int
) -> MedMNIST:
    name = display_name.lower()
    return MedMNIST(
        name=name,
        display_name=display_name,
        url=f"https://zenodo.org/records/10519652/files/{name}.npz?download=1",
        train_images=train,
        test_images=test,
        image_size=28,
        channels=channels,
        classes=classes,
    )


# The two-dimensional data sets with one label per image.
SOURCES = (
    _declare("PathMNIST", 89_996, 7_180, channels=3, classes=9),
    _declare("DermaMNIST", 7_007, 2_005, channels=3, classes=7),
    _declare("OCTMNIST", 97_477, 1_000, channels=1, classes=4),
    _declare("PneumoniaMNIST", 4_708, 624, channels=1, classes=2),
    _declare("RetinaMNIST", 1_080, 400, channels=3, classes=5),
    _declare("BreastMNIST", 546, 156, channels=1, classes=2),
    _declare("BloodMNIST", 11_959, 3_421, channels=3, classes=8),
    _declare("TissueMNIST", 165_466, 47_280, channels=1, classes=8),
    _declare("OrganAMNIST", 34_561, 17_778, channels=1, classes=11),
    _declare("OrganCMNIST", 12_975, 8_216, channels=1, classes=11),
    _declare("OrganSMNIST", 13_932, 8_827, channels=1, classes=11),
)
