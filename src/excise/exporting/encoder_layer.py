"""EraserLayer: the layer of a SentenceTransformer that holds an eraser with its float64 factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from excise import files
from excise.erasers.affine import AffineEraser
from excise.errors import FileFormatError, missing_extra

try:
    from sentence_transformers.base.modules import Module
except ImportError:
    try:
        from sentence_transformers.models import Module
    except ImportError:
        raise missing_extra("EraserLayer needs sentence-transformers, which is not installed", "encoders") from None

__all__ = ["EraserLayer"]

FILE = "eraser.safetensors"


class EraserLayer(Module):  # type: ignore[misc]
    """r(x) of the sentence embedding, computed in float64. Saved as the eraser's own file."""

    config_keys: list[str] = []  # noqa: RUF012  (the library's own way to declare it)

    def __init__(self, eraser: AffineEraser) -> None:
        super().__init__()
        self.eraser = eraser
        self.map = eraser.as_module()

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        features["sentence_embedding"] = self.map(features["sentence_embedding"])
        return features

    def get_embedding_dimension(self) -> int:
        return self.eraser.d

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the eraser into the folder of this layer; always as safetensors, whatever is asked for."""
        self.eraser.save(Path(output_path) / FILE)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **kwargs: Any,
    ) -> EraserLayer:
        """
        Raises:
            FileFormatError: the folder holds no eraser.
        """
        path = cls.load_file_path(
            model_name_or_path,
            filename=FILE,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        if path is None:
            raise FileFormatError(f"{model_name_or_path} has no {FILE} in {subfolder or 'its folder'}")
        kind, arrays, about = files.read(path)
        if kind != "AffineEraser":
            raise FileFormatError(f"{path} holds a {kind}, expected an AffineEraser")
        return cls(AffineEraser.from_stored(arrays, about))
