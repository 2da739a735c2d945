"""torch.distributed: two processes, each with its share of the rows, end with the same moments and erasers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_files import rows

import excise

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without torch.distributed")
SUPPORT = Path(__file__).parents[1] / "support"

START = """
import sys, numpy as np, torch, torch.distributed as dist
sys.path.insert(0, {support!r})
rank, out = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{port}", rank=rank, world_size=2)
import excise
from data_files import rows
{body}
dist.destroy_process_group()
"""


def run_ranks(body: str, folder: Path) -> None:
    """Run the same code on two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = START.format(support=str(SUPPORT), port=port, body=body)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), str(folder)], env=environment, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)


BODY = """
from excise.errors import ExciseError
def share(X, z):
    half = slice(0, 300) if rank == 0 else slice(300, None)
    return X[half], z[half]

def keep(name, m):
    m.save(f"{out}/{name}-{rank}")

X, z = rows(1000)
X = X.astype(np.float64) + 1e6
keep("plain", excise.Moments().update(*share(X, z)).all_reduce())
keep("variances", excise.Moments(track_xx=False).update(*share(X, z)).all_reduce())
keep("numbers", excise.Moments().update(*share(X, np.column_stack([X[:, 0], z == "m"]).astype(float))).all_reduce())
classes = np.where(np.arange(1000) < 300, z, np.char.add(z, "2"))          # each rank has classes of its own
keep("classes", excise.Moments().update(*share(X, classes)).all_reduce())
wide = np.random.default_rng(0).standard_normal((60, 400)) + (np.arange(60) % 2)[:, None]
part = slice(0, 25) if rank == 0 else slice(25, None)
few = excise.Moments().update(wide[part], np.arange(60)[part] % 2).all_reduce()
assert few.standardised_rows is not None                                    # rows in place of a 400 x 400 matrix
keep("few", few)
empty = excise.Moments()
if rank == 0:
    empty.update(X, z)
keep("empty", empty.all_reduce())
keep("tensors", excise.Moments().update(torch.from_numpy(share(X, z)[0]), share(X, z)[1]).all_reduce(dist.group.WORLD))
for wrong in (X[:, :3] if rank else X, X):
    try:
        excise.Moments().update(wrong, z if wrong.shape[1] == 3 or rank == 0 else X[:, 0]).all_reduce()
        raise SystemExit("nothing was raised")
    except ExciseError as error:
        print(error)
"""


@pytest.mark.filterwarnings("ignore::excise.ExciseWarning")
def test_all_reduce(tmp_path):
    run_ranks(BODY, tmp_path)
    X, z = rows(1000)
    X = X.astype(np.float64) + 1e6
    wide = np.random.default_rng(0).standard_normal((60, 400)) + (np.arange(60) % 2)[:, None]
    classes = np.where(np.arange(1000) < 300, z, np.char.add(z, "2"))
    expected = {
        "plain": (X, z),
        "numbers": (X, np.column_stack([X[:, 0], z == "m"]).astype(float)),
        "classes": (X, classes),
        "few": (wide, np.arange(60) % 2),
        "empty": (X, z),
        "tensors": (X, z),
    }
    for name, (features, labels) in expected.items():
        ranks = [excise.load(tmp_path / f"{name}-{rank}") for rank in range(2)]
        assert np.array_equal(ranks[0].cov_xx, ranks[1].cov_xx), name  # the same to the bit
        assert np.array_equal(ranks[0].cov_xz, ranks[1].cov_xz)
        assert ranks[0].rows == len(features)
        centred = features - features.mean(0)
        assert np.abs(ranks[0].cov_xx - centred.T @ centred / len(features)).max() < 1e-8
        alone = excise.leace(excise.Moments().update(features, labels), shrinkage="none")
        erasers = [excise.leace(m, shrinkage="none") for m in ranks]
        assert alone.rank > 0
        assert np.array_equal(erasers[0].P, erasers[1].P)
        # On the rows: with fewer rows than features the map is not determined anywhere else.
        assert np.abs(erasers[0](features) - alone(features)).max() < 1e-8 * features.std(), name
    variances = excise.load(tmp_path / "variances-0")
    assert not variances.track_xx
    assert np.allclose(variances.var_x, X.var(0))
    assert excise.load(tmp_path / "classes-1").concept.names == ("f", "f2", "m", "m2")


SCRUB = """
import transformers
config = transformers.GPTNeoXConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
torch.manual_seed(0)
model = transformers.GPTNeoXForCausalLM(config).eval()
tokens = torch.randint(0, 40, (12, 4, 9), generator=torch.Generator().manual_seed(1))
labels = torch.where(torch.arange(12)[:, None, None] < 6, tokens % 2, 2 + tokens % 2)   # classes that one rank lacks
batches = [{"input_ids": ids, "concept": z} for ids, z in zip(tokens, labels)]
for method in ("leace", "sal"):
    together = excise.scrub(model, batches[rank * 6 : rank * 6 + 6], method, progress=False, group=dist.group.WORLD)
    alone = excise.scrub(model, batches, method, progress=False)
    assert list(together.erasers) == list(alone.erasers)
    for path, eraser in together.erasers.items():
        assert eraser.rank == alone.erasers[path].rank == 3
        # A LayerNorm leaves a direction without variance, where rounding of the sums over the ridge decides.
        assert np.abs(eraser.P - alone.erasers[path].P).max() < 1e-5, np.abs(eraser.P - alone.erasers[path].P).max()
        assert np.abs(eraser.bias - alone.erasers[path].bias).max() < 1e-5, path
    together.save(f"{out}/{method}-{rank}")
for wrong in ({"method": "inlp"}, {"resume": out}):
    try:
        excise.scrub(model, batches, progress=False, group=dist.group.WORLD, **wrong)
        raise SystemExit("nothing was raised")
    except excise.ExciseError as error:
        print(error)
"""


def test_scrub_under_two_ranks(tmp_path):
    run_ranks(SCRUB, tmp_path)
    for method in ("leace", "sal"):
        one, other = (excise.load(tmp_path / f"{method}-{rank}").erasers for rank in range(2))
        assert len(one) == 4
        for path, eraser in one.items():
            assert np.array_equal(eraser.P, other[path].P)
            assert np.array_equal(eraser.bias, other[path].bias)


def test_without_a_process_group():
    X, z = rows(100)
    with pytest.raises(excise.ExciseError, match=r"torch.distributed is not initialised"):
        excise.Moments().update(X, z).all_reduce()


def test_bytes():
    from excise.distributed import from_bytes, to_bytes

    X, z = rows(100)
    m, c = excise.Moments().update(X, z), excise.ClassMoments().update(X, z)
    assert np.array_equal(from_bytes(to_bytes(m)).cov_xx, m.cov_xx)
    assert np.array_equal(from_bytes(to_bytes(c)).covs, c.covs)
    content = to_bytes(m)
    for wrong in (content[:-10], b"", b"PK" * 100, b"\xff" * 400):
        with pytest.raises(excise.FileFormatError):
            from_bytes(wrong)
    eraser = excise.fit(X, z)
    from excise import files

    with pytest.raises(excise.FileFormatError, match="hold a AffineEraser, expected Moments"):
        from_bytes(files.pack("AffineEraser", {"left": eraser.left}, {}))
