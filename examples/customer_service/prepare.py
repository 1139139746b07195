"""Support tickets to RL rows: every month but the newest trains, the newest one validates.

python examples/customer_service/prepare.py --local_save_dir data/customer_service
python examples/customer_service/prepare.py --tickets 'my_tickets/*.jsonl' --local_save_dir data/customer_service
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from verl_data import DataProcessor

CATEGORIES = ("account", "billing", "delivery", "product", "returns")
SYSTEM = (
    "You answer tickets of a kitchenware shop. Reply in the customer's language, in one to three sentences, and repeat "
    f"the order number if there is one. End with a line `category: X`, X being one of {', '.join(CATEGORIES)}."
)

_MAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")
_PHONE = re.compile(r"(?<!\d)1\d{10}(?!\d)")
_ORDER = re.compile(r"(?:[Oo]rder|订单号?) ?(\d{5})")


class TicketProcessor(DataProcessor):
    """Turns {id, opened, channel, language, category, status, text} into RL rows."""

    def __init__(self, split: str) -> None:
        """Leave out, and count, tickets that cannot be used."""
        super().__init__(on_error="skip")
        self._split = split

    def process_row(self, row: dict[str, Any], index: int) -> dict[str, Any] | None:
        """Return the row, None for spam and for what is not settled yet; ValueError for a ticket with a fault."""
        if row["category"] == "spam" or row["status"] == "open":
            return None
        if not row["text"].strip():
            raise ValueError(f"ticket {row['id']} has no text")
        if row["category"] not in CATEGORIES:
            raise ValueError(
                f"ticket {row['id']} has the category {row['category']!r}, not one of {', '.join(CATEGORIES)}"
            )
        text = _PHONE.sub("<phone>", _MAIL.sub("<mail>", row["text"]))
        order = _ORDER.search(text)
        return {
            "data_source": "shop/tickets",
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
            "ability": "support",
            "reward_model": {"style": "rule", "ground_truth": row["category"]},
            "extra_info": {
                "split": self._split,
                "index": index,
                "ticket": row["id"],
                "language": row["language"],
                "order": order[1] if order else None,
            },
        }


def main() -> int:
    """Write train.parquet and validation.parquet, and print what became of the tickets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tickets", default=str(Path(__file__).parent / "tickets" / "*.jsonl"), help="a glob, by month"
    )
    parser.add_argument("--local_save_dir", default="data/customer_service", help="folder for the output")
    arguments = parser.parse_args()
    pattern, folder = Path(arguments.tickets).expanduser(), Path(arguments.local_save_dir).expanduser()
    months = sorted(pattern.parent.glob(pattern.name))
    if len(months) < 2:
        print(f"{pattern}: files of at least two months are needed, but there are {len(months)}.", file=sys.stderr)
        return 1
    for split, files in (("train", months[:-1]), ("validation", months[-1:])):
        print(TicketProcessor(split).run(files, folder / f"{split}.parquet"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
