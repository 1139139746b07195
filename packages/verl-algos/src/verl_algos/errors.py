"""What goes wrong with numbers."""


class NonFiniteError(ValueError):
    """Numbers that must be finite are not; `column` says which: token_rewards, values, reward or current_kl."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message, column)  # both, so that the error survives pickling between processes
        self.column = column

    def __str__(self) -> str:
        return str(self.args[0])
