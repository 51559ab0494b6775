"""Putting a finished folder on the Hugging Face Hub.

    python run.py stage=export run=runs/sts/NAME export.dir=my-model export.repo=USER/NAME

The token is huggingface_hub's own (`hf auth login`, or HF_TOKEN); it is never a key of ours, so
that it cannot get into a configuration, a manifest or a log.
"""

from pathlib import Path

from pipeline.errors import UserError


def check_repo(repo: str) -> None:
    """Refuses a name that is none, and to start without a login."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        huggingface_hub.utils.validate_repo_id(repo)
        is_name = repo.count("/") == 1
    except HFValidationError:
        is_name = False
    if not is_name:
        raise UserError(f"export.repo: expected USER/NAME, got {repo!r}")
    if not huggingface_hub.get_token():
        raise UserError("export.repo: expected a login to the Hub, got none: hf auth login, or a "
                        "token in HF_TOKEN")


def push(folder: Path, repo: str, is_private: bool) -> str:
    """Uploads the folder's files in one commit and returns its address; one line if it fails."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    failures = (*HfHubHTTPError.__bases__, ValueError)  # OSError, and the errors of its HTTP client
    try:
        hub = HfApi()
        hub.create_repo(repo, private=is_private, exist_ok=True)
        return hub.upload_folder(repo_id=repo, folder_path=folder,
                                 commit_message="Model exported").commit_url
    except failures as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"export.repo={repo}: the Hub did not take the folder ({reason}); it lies "
                        f"whole in {folder}: the same command tries again") from None
