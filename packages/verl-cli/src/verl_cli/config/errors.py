"""The one exception of the configuration."""

from verl_cli.errors import UserError


class ConfigError(UserError):
    """Everything that is wrong with a configuration, at once; each problem is one paragraph with its remedy."""

    def __init__(self, *problems: str, advice: str = "") -> None:
        super().__init__(*problems)
        self.problems = list(problems)
        self.advice = advice
        """What else can be done about them, if anything."""

    def __str__(self) -> str:
        end = f"\n\n{self.advice}" if self.advice else ""
        if len(self.problems) == 1:
            return self.problems[0] + end
        numbered = (f"{number}. {problem}" for number, problem in enumerate(self.problems, start=1))
        return f"The configuration has {len(self.problems)} problems.\n\n" + "\n\n".join(numbered) + end
