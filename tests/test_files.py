"""What is saved comes back; what is not whole, not ours or too new is refused with a reason."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec

import numpy as np
import pytest
from optional import optional
from safetensors.numpy import load_file, save_file

import excise

torch = optional("torch")
# Without PyTorch a folder cannot be looked into: the error says what to install.
FOLDER_ERROR = excise.ExciseError if find_spec("torch") is None else excise.FileFormatError


@pytest.fixture
def data(rng):
    z = rng.choice(["no", "yes", "maybe"], 300)
    return rng.standard_normal((300, 4)) + (z == "yes")[:, None], z


@pytest.mark.parametrize("method", ["leace", "sal", "mean_projection", "random", "oracle"])
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_erasers_come_back_to_the_bit(data, tmp_path, method, library):
    X, z = data
    eraser = excise.fit(library(X), z, method=method)
    eraser.save(tmp_path / "e.safetensors")
    again = excise.load(tmp_path / "e.safetensors")
    arguments = (X, z) if method == "oracle" else (X,)
    assert np.array_equal(again(*arguments), eraser(*arguments))
    assert np.abs(again(*arguments) - X).max() > 0.1
    assert again.info == eraser.info
    assert type(again) is type(eraser)
    assert repr(again) == repr(eraser)


def test_moments_come_back_and_go_on(data, tmp_path):
    X, z = data
    m = excise.Moments().update(X[:200], z[:200])
    m.save(tmp_path / "m.safetensors")
    again = excise.load(tmp_path / "m.safetensors").update(X[200:], z[200:])
    assert np.array_equal(again.cov_xx, m.update(X[200:], z[200:]).cov_xx)
    assert again.concept == m.concept
    small = excise.Moments(track_xx=False).update(X, z)
    small.save(tmp_path / "s.safetensors")
    assert not excise.load(tmp_path / "s.safetensors").track_xx
    c = excise.ClassMoments().update(X, z)
    c.save(tmp_path / "c.safetensors")
    assert np.array_equal(excise.load(tmp_path / "c.safetensors").update(X, z).covs, c.update(X, z).covs)


def test_names_keep_their_type(tmp_path):
    X = np.random.default_rng(0).standard_normal((120, 2))
    z = [1, "1", True] * 40
    excise.fit(X, z, method="oracle").save(tmp_path / "e.safetensors")
    names = excise.load(tmp_path / "e.safetensors").concept.names
    assert [(type(n), n) for n in names] == [(bool, True), (int, 1), (str, "1")]


def header_of(path):
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return json.loads(file.metadata()["excise"])


def test_refused_files(data, tmp_path):
    eraser = excise.fit(*data)
    path = tmp_path / "e.safetensors"
    eraser.save(path)
    content = path.read_bytes()
    for cut in (0, 5, 100, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(excise.FileFormatError, match="not a whole safetensors file"):
            excise.load(path)
    path.write_bytes(b"PK\x03\x04 a zip, or a pickle" * 50)
    with pytest.raises(excise.FileFormatError, match="not a whole safetensors file"):
        excise.load(path)
    save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(excise.FileFormatError, match="excise did not write it"):
        excise.load(path)
    path.write_bytes(content)
    arrays, header = load_file(path), header_of(path)
    for change, message in (
        ({"format": 99}, "format 99 .*upgrade excise"),
        ({"kind": "Whatever"}, "holds a Whatever, which this excise does not know"),
    ):
        save_file(arrays, path, metadata={"excise": json.dumps(header | change)})
        with pytest.raises(excise.FileFormatError, match=message):
            excise.load(path)
    save_file({"left": arrays["left"]}, path, metadata={"excise": json.dumps(header)})
    with pytest.raises(excise.FileFormatError, match="parts missing or wrong"):
        excise.load(path)
    short = arrays | {"right": arrays["right"][:2].copy()}
    save_file(short, path, metadata={"excise": json.dumps(header)})
    with pytest.raises(
        excise.FileFormatError, match=r"array 'right' has the shape \(2, 1\)|array 'right' has the shape \(2, 2\)"
    ):
        excise.load(path)
    save_file(arrays, path, metadata={"excise": json.dumps(header | {"format": "one"})})
    with pytest.raises(excise.FileFormatError, match="no format number"):
        excise.load(path)
    excise.random_projection(4, 2, seed=np.int64(3)).save(path)
    assert excise.load(path).info["seed"] == 3
    with pytest.raises(FileNotFoundError, match="no such file"):
        excise.load(tmp_path / "nothing")
    with pytest.raises(FOLDER_ERROR, match="folder"):
        excise.load(tmp_path)


def test_writing_is_atomic(data, tmp_path, monkeypatch):
    eraser = excise.fit(*data)
    path = tmp_path / "e.safetensors"
    eraser.save(path)
    before = path.read_bytes()

    def crash(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        excise.fit(data[0] * 2, data[1]).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["e.safetensors"]
    with pytest.raises(excise.FileFormatError, match=r"folder .* does not exist"):
        eraser.save(tmp_path / "no" / "e.safetensors")
