"""Without an extra, every door says which one to install, before any work."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

import excise
from excise.cli import run
from excise.cli.app import app
from excise.errors import EXTRA_OF

COMMAND = "from excise.cli import main; main()"
CASES = {
    "demo": (["matplotlib"], COMMAND, ["demo"], "report"),
    "audit page": (["matplotlib"], COMMAND, ["audit", "X.npy", "z.npy", "--html", "r.html"], "report"),
    "compare page": (["jinja2"], COMMAND, ["compare", "X.npy", "z.npy", "--html", "r.html"], "report"),
    "scrub command": (["transformers"], COMMAND, ["scrub", "model", "data", "-o", "out"], "transformers"),
    "evaluate command": (["torch"], COMMAND, ["evaluate", "model", "data"], "transformers"),
    "amnesic command": (["torch"], COMMAND, ["amnesic", "model", "fit", "data"], "transformers"),
    "tag command": (["transformers"], COMMAND, ["tag", "a.txt", "model", "-c", "upos", "-o", "out"], "transformers"),
    "adapter": (["peft"], COMMAND, ["fold", "model", "scrubber", "-o", "out", "--lora"], "transformers"),
    "no command line": (["typer"], COMMAND, ["fit"], "cli"),
    "cluster": (["dask"], COMMAND, ["fit", "X.npy", "z.npy", "--workers", "2", "-o", "e"], "dask"),
    "scrub": (["torch"], "import excise; excise.scrub(None, [])", [], "transformers"),
    "as_module": (["torch"], "import excise; excise.random_projection(4, 1, 0).as_module()", [], "torch"),
}


@pytest.mark.parametrize("name", CASES)
def test_says_what_to_install(name, tmp_path):
    hidden, code, arguments, extra = CASES[name]
    np.save(tmp_path / "X.npy", np.random.default_rng(0).standard_normal((40, 3)))
    np.save(tmp_path / "z.npy", np.arange(40) % 2)
    hide = f"import sys; sys.modules |= dict.fromkeys({hidden!r}); sys.argv = {['excise', *arguments]!r}; "
    done = subprocess.run(
        [sys.executable, "-c", hide + code], cwd=tmp_path, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert done.returncode != 0
    assert f"pip install 'excise[{extra}]'" in done.stderr + done.stdout, done.stderr[-2000:]
    assert not (tmp_path / "out").exists()


def hide(monkeypatch, package):
    """As if the package were not installed, whatever has been imported already."""

    class Nowhere:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Nowhere, *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)


COMMANDS = {
    "fit arrays": "fit x.npy z.npy -o new",
    "fit a table": "fit t.parquet -c sex -o new",
    "fit text": "fit t.csv -c sex -o new",
    "fit a folder": "fit shards -c sex -o new",
    "fit a URL": "fit memory://nothing/x.npy z.npy -o new",
    "fit on workers": "fit x.npy z.npy --workers 1 -o new",
    "fit on rows": "fit x.npy z.npy -m inlp -o new",
    "dry run": "fit t.parquet -c sex --dry-run",
    "unit vectors": "fit x.npy z.npy --normalize -o new",
    "apply": "apply e x.npy -o new.npy",
    "apply to a table": "apply e x.npy -o new.parquet",
    "apply to text": "apply named t.csv -o new.csv",
    "apply a table": "apply named t.parquet -o new.parquet",
    "apply to Arrow": "apply named t.parquet -o new.arrow",
    "apply a folder": "apply named shards -o folder",
    "apply bfloat16": "apply b b.safetensors -o new.safetensors",
    "apply to a URL": "apply e x.npy -o memory://nothing/new.npy",
    "merge": "merge m m -o new",
    "audit": "audit x.npy z.npy -e e --quick",
    "audit a table": "audit t.parquet -c sex --quick",
    "audit page": "audit x.npy z.npy -e e --quick --html new.html",
    "compare": "compare x.npy z.npy -m leace",
    "compare figure": "compare x.npy z.npy -m leace --figure new.png",
    "demo": "demo",
    "experiment": "reproduce oblique -o folder",
    "experiment with data": "reproduce oracle --data . -o folder",
    "tag": "tag t.parquet model -c sex -o folder",
    "scrub": "scrub model data -o folder",
    "evaluate": "evaluate model data",
    "amnesic": "amnesic model data data",
    "fold": "fold model scrubber -o folder",
    "adapter": "fold model scrubber -o folder --lora",
}
PACKAGES = ("pyarrow", "fsspec", "dask", "distributed", "matplotlib", "jinja2", "torch", "transformers", "peft", "tqdm")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    import pandas as pd
    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("extras")
    rng = np.random.default_rng(0)
    z = np.arange(200) % 2
    X = rng.standard_normal((200, 3)) + z[:, None]
    frame = pd.DataFrame(X, columns=list("abc")).assign(sex=np.where(z, "f", "m"))
    np.save(folder / "x.npy", X)
    np.save(folder / "z.npy", z)
    frame.to_parquet(folder / "t.parquet")
    frame.to_csv(folder / "t.csv", index=False)
    (folder / "shards").mkdir()
    for i in range(2):
        frame.to_parquet(folder / "shards" / f"{i}.parquet")
    save_file({"X": torch.from_numpy(X).bfloat16()}, folder / "b.safetensors")
    excise.fit(X, z).save(folder / "e")
    excise.fit(frame[list("abc")], z).save(folder / "named")
    excise.fit(torch.from_numpy(X).bfloat16(), z).save(folder / "b")
    excise.Moments().update(X, z).save(folder / "m")
    return folder


@pytest.mark.filterwarnings("ignore::excise.ExciseWarning")
@pytest.mark.parametrize("package", PACKAGES)
def test_every_command_without_the_package(package, workplace, monkeypatch, capsys):
    """Each command works without it, or says in one sentence what to install, and leaves nothing half written."""
    monkeypatch.chdir(workplace)
    hide(monkeypatch, package)
    before = set(workplace.rglob("*"))
    needs = []
    for name, line in COMMANDS.items():
        status = run(app, line.split())
        said = capsys.readouterr().err
        assert "Traceback" not in said, (name, said)
        if "pip install" in said:
            needs.append(name)
            assert status == 2, name
            assert said.count("error: ") == 1, (name, said)
            assert f"needs the package {package}" in said or f"excise[{EXTRA_OF[package]}]" in said, (name, said)
            left = set(workplace.rglob("*")) - before
            assert not left, (name, left)
        for path in set(workplace.rglob("*")) - before:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    assert needs or package == "tqdm", "nothing needed it"
