"""The Hub: loading from it or a folder with failures in one line; is it within reach?

The libraries retry every model for about half a minute before they give up; one short request
beforehand spares that to whoever asks for several models without a network.
"""

import logging
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pipeline.errors import UserError

PATIENCE = 5  # seconds


def answers() -> bool:
    """Whether the Hub can be reached; an error that it answers with counts too."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=PATIENCE).close()
    except HTTPError:
        return True
    except (OSError, ValueError):  # ValueError: HF_ENDPOINT is no address
        return False
    return True


def cached(name: str) -> Path | None:
    """The folder of a Hub model in the local cache, if it was ever brought there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def quiet() -> None:
    """Hides the libraries' bars over local files and their talk of retries; downloads keep bars."""
    import huggingface_hub.utils
    import transformers

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    huggingface_hub.utils.enable_progress_bars()


def located(path: str) -> str:
    """The Hub id or folder that encoder.path stands for; `offline` is made from its package."""
    if path != "offline":
        return path
    from pipeline.offline import offline_encoder

    return str(offline_encoder())


def from_hub(loader: Any, path: str, **options: Any) -> Any:
    """`loader.from_pretrained` with its failures in one line."""
    import torch
    from huggingface_hub.utils import httpx
    from safetensors import SafetensorError

    quiet()
    if path.startswith((".", "/", "~")) and not Path(path).is_dir():
        raise UserError(f"encoder.path: expected a Hub id or a folder, got no folder {path}")
    try:
        return loader.from_pretrained(path, **options)
    except torch.serialization.pickle.UnpicklingError:  # torch's weights_only refused them
        raise UserError(f"encoder.path={path}: expected weights that are tensors alone, got a "
                        "pickle with code in it; take a copy in safetensors") from None
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError,
            httpx.HTTPError) as error:
        reason = " ".join(str(network_error(error) or error).split())[:200]
        if Path(path).is_dir():
            raise UserError(f"encoder.path={path}: expected a Hugging Face encoder's folder, got: "
                            f"{reason}") from None
        raise UserError(f"encoder.path={path}: the Hub could not give this model ({reason}); ways "
                        "out: encoder.path=FOLDER with a local copy, HF_HOME with a filled cache, "
                        "or preset=offline") from None


def network_error(error: BaseException | None) -> BaseException | None:
    """What broke the connection, beneath a library's error that does not repeat its words."""
    from huggingface_hub.utils import httpx

    while error and not isinstance(error, httpx.TransportError):
        error = error.__cause__ or error.__context__
    return error
