"""The one exception of this package."""


class DataError(ValueError):
    """Data that cannot be used; the message names the file, the row, the field, and what to do."""
