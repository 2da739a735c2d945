"""ConceptEraser: the scikit-learn face of excise. No algebra here: labels are found, moments gathered, methods called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import narwhals as nw
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from excise.concepts.concept import Concept
from excise.erasers.protocol import Eraser
from excise.errors import ConceptError, ExciseError, InputError
from excise.fitting import fit, fit_moments
from excise.methods.table import Method, check_method
from excise.moments.class_moments import ClassMoments
from excise.moments.labelled_rows import refuse_features_as_labels
from excise.moments.moments import Moments

__all__ = ["ConceptEraser"]

DTYPES = [np.float64, np.float32, np.float16]


def _refuse_text(frame: Any, concept: Sequence[str] = ()) -> None:
    """
    Raises:
        InputError: columns of a data frame that are not numbers, other than those of the concept.
    """
    if not isinstance(frame, nw.DataFrame):
        return
    text = [c.name for c in frame.iter_columns() if not (c.dtype.is_numeric() or c.dtype == nw.Boolean)]
    text = [name for name in text if name not in concept]
    if text:
        shown = ", ".join(map(repr, text[:6])) + (f", ... ({len(text)} in all)" if len(text) > 6 else "")
        raise InputError(
            f"X has {len(text)} column(s) that are not numbers: {shown}. Encode them first, in a pipeline with "
            f"make_column_transformer((OneHotEncoder(sparse_output=False), [{', '.join(map(repr, text[:6]))}]), "
            f"remainder='passthrough'), or name them as the concept by concept_columns",
            code="text-column",
        )


class ConceptEraser(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Erase a concept from features, as a scikit-learn transformer.

    **In a Pipeline, y is the task, not the concept.** Say where the concept comes from in one of three ways: name its
    columns by `concept_columns`; pass it as `sensitive_features` (with
    `sklearn.set_config(enable_metadata_routing=True)`, a Pipeline passes it on); or, if y really is the concept, ask
    for that by `concept="y"`. Fitting raises an error if none of them is used.

    Parameters
    ----------
    method : str, default="leace"
        "leace", "sal", "mean_projection", "splince" (keeps what predicts y), "fair_pca", "inlp", "rlace", "random"; or
        "oracle" and "quadratic", which need the labels in `transform` too.
    concept : {"y"}, default=None
        "y" takes y as the concept.
    concept_columns : list of str or int, or one of them, default=None
        Columns of X that are the concept. They are left out of the output, as they are the concept itself, and
        `transform` does not ask for them unless the method needs the labels.
    kind : {"categorical", "continuous"} or dict by column, default=None
        What the labels are, if that cannot be inferred from them: see `Concept.of`.
    cross : bool, default=False
        Erase the intersections of several categorical columns too.
    method_options : dict, default=None
        Options of the method, e.g. `{"shrinkage": "oas"}`.
    normalize : bool, default=False
        Give unit vectors, and erase the concept from these (LEACE only; `fit` goes through the rows several times).
    task_kind : {"categorical", "continuous"}, default=None
        What `kind` is, for the task y (method "splince").

    Attributes
    ----------
    eraser_ : AffineEraser, OracleEraser or TransportEraser
    moments_ : Moments or ClassMoments, for methods that are fitted from them
    n_features_in_ : int
    feature_names_in_ : ndarray of str, if X had column names

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> sex = rng.integers(0, 2, 500)
    >>> X = rng.standard_normal((500, 4)) + sex[:, None]
    >>> Xe = ConceptEraser().fit_transform(X, sensitive_features=sex)
    >>> bool(abs(Xe[sex == 1].mean(0) - Xe[sex == 0].mean(0)).max() < 1e-12)
    True
    """

    # In a Pipeline with metadata routing, sensitive_features come here without a set_fit_request.
    __metadata_request__fit: ClassVar = {"sensitive_features": True}
    __metadata_request__partial_fit: ClassVar = {"sensitive_features": True}
    __metadata_request__transform: ClassVar = {"sensitive_features": True}

    moments_: Any
    task_moments_: Any

    def __init__(
        self,
        method: str = "leace",
        concept: Any = None,
        concept_columns: Any = None,
        kind: Any = None,
        cross: bool = False,
        method_options: dict[str, Any] | None = None,
        normalize: bool = False,
        task_kind: Any = None,
    ) -> None:
        self.method = method
        self.concept = concept
        self.concept_columns = concept_columns
        self.kind = kind
        self.cross = cross
        self.method_options = method_options
        self.normalize = normalize
        self.task_kind = task_kind

    def fit(self, X: Any, y: Any = None, *, sensitive_features: Any = None, sample_weight: Any = None) -> ConceptEraser:
        """Fit the eraser on X (n_samples, n_features).

        The concept is `sensitive_features`, or the `concept_columns` of X, or y if `concept="y"`.
        """
        for name in ("moments_", "task_moments_", "_eraser"):
            self.__dict__.pop(name, None)
        if self._method().needs == "rows" or self.normalize:
            features, columns = self._split(X)
            z, _ = self._find_concept(y, sensitive_features, columns)
            options = {"kind": self.kind, **(self.method_options or {})}
            if self.cross:
                z, options["kind"] = Concept.learn(z, kind=self.kind, cross=True)[1].codes, "categorical"
            if self.normalize:
                options["normalize"] = True
            self._eraser = fit(features, z, self.method, sample_weight=sample_weight, **options)
            return self
        self.partial_fit(X, y, sensitive_features=sensitive_features, sample_weight=sample_weight)
        try:
            _ = self.eraser_  # solve now, so that what cannot be erased fails here
        except ExciseError:
            del self.moments_
            raise
        return self

    def partial_fit(
        self, X: Any, y: Any = None, *, sensitive_features: Any = None, sample_weight: Any = None
    ) -> ConceptEraser:
        """Add a batch. The eraser is solved when it is next used. Not for methods that train on the rows themselves."""
        method = self._method()
        if method.needs == "rows":
            raise ExciseError(f"method {self.method!r} trains on all rows at once: use fit")
        if self.normalize:
            raise ExciseError(
                "normalize=True goes through the rows several times: use fit, or excise.fit_batches for data that do not "
                "fit into memory"
            )
        first = not hasattr(self, "moments_")
        features, columns = self._split(X, reset=first)
        z, task = self._find_concept(y, sensitive_features, columns)
        moments = self._empty(method, z) if first else self.moments_
        task_moments = None
        if method.uses_task == "must":  # a new object, so that a refused batch changes neither of the two
            batch = Moments.of_task(features, task, sample_weight, self.task_kind)
            if not first and self.task_moments_ is None:
                raise ExciseError(
                    "method was changed to one that needs the task after batches without it: call fit again"
                )
            task_moments = batch if first else self.task_moments_ + batch
        if first:
            refuse_features_as_labels(*Concept.learn(z, kind=self.kind, cross=self.cross), features.shape[1])
        moments.update(features, z, sample_weight)
        moments._feature_names = moments._feature_names or self._names()
        self.moments_, self.task_moments_ = moments, task_moments
        self.__dict__.pop("_eraser", None)
        return self

    def _empty(self, method: Method, z: Any) -> Any:
        given = Concept.of(z, kind=self.kind, cross=self.cross) if self.kind is not None or self.cross else None
        needs = method.needs_with(self.method_options or {})
        return ClassMoments(given) if needs == "class moments" else Moments(concept=given, track_xx=needs == "moments")

    def _method(self) -> Method:
        if self.concept not in (None, "y"):
            raise ConceptError(
                f"concept must be 'y' (y is the concept) or None, got {self.concept!r}: name columns of X by "
                f"concept_columns, or pass labels as sensitive_features"
            )
        return check_method(self.method, self.method_options or {})

    @property
    def eraser_(self) -> Eraser:
        if not hasattr(self, "_eraser"):
            if not hasattr(self, "moments_"):
                raise AttributeError("eraser_ exists after fit or partial_fit")
            options = self.method_options or {}
            self._eraser = fit_moments(self.moments_, self.method, task=self.task_moments_, **options)
        return self._eraser

    def transform(self, X: Any, sensitive_features: Any = None) -> Any:
        """X with the concept erased. `sensitive_features` only for methods that need the labels again (the oracle)."""
        check_is_fitted(self, ["moments_", "_eraser"], all_or_any=any)
        eraser = self.eraser_
        features, columns = self._split(X, reset=False, concept_needed=eraser.needs_labels)
        if not eraser.needs_labels:
            return eraser(features)
        z = columns if columns is not None else sensitive_features
        if z is None:
            raise ConceptError(
                f"method {self.method!r} needs the labels in transform: pass sensitive_features=", code="labels-needed"
            )
        return eraser(features, z)

    def fit_transform(self, X: Any, y: Any = None, *, sensitive_features: Any = None, sample_weight: Any = None) -> Any:
        """Fit, then erase from the same rows."""
        self.fit(X, y, sensitive_features=sensitive_features, sample_weight=sample_weight)
        return self.transform(X, sensitive_features) if self._method().labels_to_apply else self.transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the output columns: those of X without the concept's columns."""
        check_is_fitted(self, ["moments_", "_eraser"], all_or_any=any)
        names = _check_feature_names_in(self, input_features)
        return np.delete(names, self._concept_positions())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.concept == "y"
        tags.transformer_tags.preserves_dtype = ["float64", "float32", "float16"]
        return tags

    def _find_concept(self, y: Any, sensitive_features: Any, from_columns: Any) -> tuple[Any, Any]:
        """The concept, and the task (None if y is the concept or was not given)."""
        given = [z for z in (from_columns, sensitive_features) if z is not None]
        if len(given) + (self.concept == "y") > 1:
            raise ConceptError(
                "the concept was given twice: use one of concept_columns, sensitive_features and concept='y'"
            )
        method = self._method()
        if given:
            if method.uses_task == "must" and y is None:
                raise ConceptError(f"method {self.method!r} keeps what predicts the task: pass the task as y")
            return given[0], y
        if self.concept != "y":
            raise ConceptError(
                f"{type(self).__name__} does not know what to erase. Pass the concept as sensitive_features=, name its "
                f"columns by concept_columns=, or, if y is the concept and not the task, use "
                f"{type(self).__name__}(concept='y')",
                code="which-concept",
            )
        if y is None:
            raise ConceptError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: with concept='y', y is the concept"
            )
        if method.uses_task == "must":
            raise ConceptError(
                f"method {self.method!r} needs both the concept and the task: y is the task, so pass the concept as "
                f"sensitive_features or name it by concept_columns"
            )
        if method.labels_to_apply:
            raise ConceptError(
                f"method {self.method!r} needs the labels when it is applied, and y is not there in transform: pass the "
                f"concept as sensitive_features (to fit and to transform), or name it by concept_columns"
            )
        return y, None

    def _split(self, X: Any, reset: bool = True, concept_needed: bool = True) -> tuple[Any, Any]:
        """Features as a float array, and the concept's columns (None if it is not in X)."""
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if self.concept_columns is None:
            _refuse_text(frame)
            return validate_data(self, X, reset=reset, dtype=DTYPES), None
        if not concept_needed and (without := self._without_concept(X, frame)) is not None:
            return without, None
        validate_data(self, X, reset=reset, skip_check_array=True)
        at = self._concept_positions()
        if isinstance(frame, nw.DataFrame):
            columns = list(frame.iter_columns())
            _refuse_text(frame, [columns[i].name for i in at])
            concept: Any = {columns[i].name: columns[i].to_native() for i in at}
            rest: Any = np.column_stack([column.to_numpy() for i, column in enumerate(columns) if i not in at])
        else:
            X = np.asarray(X)
            concept, rest = X[:, at], np.delete(X, at, axis=1)
        return check_array(rest, dtype=DTYPES), concept

    def _without_concept(self, X: Any, frame: Any) -> Any:
        """The features of an X that lacks the concept's columns; None if it has them."""
        at = self._concept_positions()
        known = getattr(self, "feature_names_in_", None)
        if not isinstance(frame, nw.DataFrame) or known is None:
            narrow = np.ndim(X) == 2 and np.shape(X)[1] == self.n_features_in_ - len(at)
            return check_array(X, dtype=DTYPES) if narrow else None
        names = [name for i, name in enumerate(known) if i not in at]
        if list(frame.columns) != names:
            return None
        return check_array(np.column_stack([frame[name].to_numpy() for name in names]), dtype=DTYPES)

    def _names(self) -> tuple[str, ...] | None:
        """Names of the features, if X had any."""
        known = getattr(self, "feature_names_in_", None)
        at = self._concept_positions()
        return None if known is None else tuple(str(name) for i, name in enumerate(known) if i not in at)

    def _concept_positions(self) -> list[int]:
        chosen = self.concept_columns
        if chosen is None:
            return []
        names = list(getattr(self, "feature_names_in_", []))
        out: list[int] = []
        for column in [chosen] if isinstance(chosen, (str, int, np.integer)) else list(chosen):
            if isinstance(column, str):
                if column not in names:
                    known = f"columns are {', '.join(names)}" if names else "X has no column names"
                    raise ExciseError(f"concept_columns names {column!r}, but {known}", code="missing-column")
                out.append(names.index(column))
            elif not -self.n_features_in_ <= column < self.n_features_in_:
                raise ExciseError(f"concept_columns names column {column}, but X has {self.n_features_in_} columns")
            else:
                out.append(int(column) % self.n_features_in_)
        if len(set(out)) == self.n_features_in_:
            raise ExciseError("concept_columns names every column of X: there are no features left to erase from")
        return list(dict.fromkeys(out))
