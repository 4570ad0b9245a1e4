"""The whole way from corpus to shipped files: python -m training"""

import shutil

from training.export import DESCRIPTIONS, export
from training.train import OUT, RECIPES, SEED, THREADS, train


def main() -> None:
    """Starts from nothing, so that an old tokenizer or checkpoint cannot slip in."""
    shutil.rmtree(OUT, ignore_errors=True)
    train(list(RECIPES), SEED, THREADS)
    for name in DESCRIPTIONS:
        print(export(name), flush=True)


if __name__ == "__main__":
    main()
