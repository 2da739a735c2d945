"""Language models and tokenizers by hub name or folder, with errors that say what is missing."""

from __future__ import annotations

from typing import Any

from excise.errors import ExciseError

__all__ = ["load_model", "load_tokenizer"]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ExciseError("this command needs transformers: pip install 'excise[transformers]'") from None
    return transformers


def _loaded(loader: Any, name: str, gguf_file: str | None, **options: Any) -> Any:
    more = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        return loader.from_pretrained(name, **more, **options)
    except (OSError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise ExciseError(f"cannot load {name!r} with {loader.__name__}: {first}") from None


def load_tokenizer(name: str, gguf_file: str | None = None) -> Any:
    return _loaded(_transformers().AutoTokenizer, name, gguf_file)


def load_model(name: str, gguf_file: str | None = None, device: str | None = None, dtype: str = "float32") -> Any:
    """A causal or masked language model, by what its configuration says it is.

    Raises:
        ExciseError: it cannot be loaded, or it has no language-modelling head.
    """
    import torch

    transformers = _transformers()
    if dtype not in ("float32", "float64", "bfloat16", "float16"):
        raise ExciseError(f"--dtype must be float32, float64, bfloat16 or float16, got {dtype!r}")
    if gguf_file is None:
        config = _loaded(transformers.AutoConfig, name, None)
        heads = [
            head for head in config.architectures or [] if head.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel"))
        ]
        if not heads:
            raise ExciseError(
                f"{name} is saved as {', '.join(config.architectures or ['?'])}, a model without a language-modelling head: "
                f"its loss cannot be measured; pass a ...ForCausalLM or ...ForMaskedLM"
            )
        masked = heads[0].endswith("ForMaskedLM")
    else:
        masked = False
    loader = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    model = _loaded(loader, name, gguf_file, dtype=getattr(torch, dtype))
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
