"""Lists the stages, the presets and every key with its default.

    python run.py help
"""

import shutil
import textwrap

from pipeline.config import KEYS, Config, shown
from pipeline.layers import presets
from pipeline.stages import STAGES


def run(config: Config) -> None:
    """Prints the lists."""
    width = min(shutil.get_terminal_size().columns, 120)
    print("python run.py stage=STAGE [preset=NAME] [key=value ...]\n\nStages")
    for name, words in STAGES.items():
        print(f"  {name:<9} {words}")
    print("\nPresets (configs/presets/)")
    print(textwrap.fill(", ".join(presets()), width, initial_indent="  ", subsequent_indent="  ",
                        break_on_hyphens=False))
    print("\nKeys = defaults; the preset goes above them, the command line above the preset")
    for name, (default, metadata) in KEYS.items():
        words = metadata["help"]
        if "choices" in metadata:
            words += f" ({' | '.join(metadata['choices'])})"
        head = f"  {name}={shown(default)}"
        if len(head) > 36:  # a line of its own
            print(head)
            head = ""
        print(textwrap.fill(words, width, initial_indent=f"{head:<36}  ",
                            subsequent_indent=" " * 38))
