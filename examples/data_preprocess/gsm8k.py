"""Turn GSM8K into Parquet for RL training.

python examples/data_preprocess/gsm8k.py --local_dir ~/data/gsm8k  # from the Hugging Face hub
python examples/data_preprocess/gsm8k.py --local_dataset_path COPY --local_dir ~/data/gsm8k  # from a local copy
"""

import argparse
import sys

from verl_data.processors.gsm8k import prepare_gsm8k


def main() -> int:
    """Write train.parquet and test.parquet, and print what was done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--local_save_dir", "--local_dir", default="~/data/gsm8k", help="folder for train.parquet and test.parquet"
    )
    parser.add_argument("--local_dataset_path", help="folder with train.jsonl and test.jsonl, instead of the hub")
    arguments = parser.parse_args()
    try:
        manifests = prepare_gsm8k(arguments.local_save_dir, dataset_path=arguments.local_dataset_path)
    except (ValueError, OSError) as error:
        print(f"gsm8k.py: {error}", file=sys.stderr)
        return 1
    for manifest in manifests.values():
        print(manifest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
