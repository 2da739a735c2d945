"""The paper's tables and figures, one module each, by `excise reproduce NAME`."""

from excise.experiments.reproducing import EXPERIMENTS, Options, reproduce

__all__ = ["EXPERIMENTS", "Options", "reproduce"]
