"""Is the Hub within reach, and what of it is already here?

The libraries retry every model for about half a minute before they give up; one short request
beforehand spares that to whoever asks for several models without a network.
"""

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

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
