"""What excise raises and warns with.

Every error says what was wrong, what was got and what to do. All errors are `ValueError`s, so code that already
guards a scikit-learn call guards an excise call too.
"""

__all__ = ["ConceptError", "ExciseError", "ExciseWarning", "FileFormatError", "InputError"]


class ExciseError(ValueError):
    """Anything that excise refuses to do."""


class InputError(ExciseError):
    """The features are not a finite real array of the expected shape."""


class ConceptError(ExciseError):
    """The labels cannot be read as a concept, or leave nothing to erase."""


class FileFormatError(ExciseError):
    """A file is not what excise wrote: truncated, foreign, or from a newer version."""


class ExciseWarning(UserWarning):
    """The result is right, but not what one might think it is."""
