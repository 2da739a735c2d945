"""Without an extra, every door says which one to install, before any work."""

import subprocess
import sys

import numpy as np
import pytest

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
