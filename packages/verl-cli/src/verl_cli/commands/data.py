"""`verl-cli data`: training rows checked and looked at, before anything is trained on them."""

from typing import Annotated, Literal

import typer

from verl_cli.commands.guard import guarded

app = typer.Typer(help="Look at training data: is every row sound, and what is the model given?", no_args_is_help=True)


#: As `verl_data.schema.SchemaName`: help must not wait for an import.
SchemaName = Literal["rl", "sft", "preference", "reward"]
SchemaOption = Annotated[
    SchemaName | None, typer.Option("--schema", help="What the rows are for; by default the columns tell.")
]
TokenizerOption = Annotated[
    str | None,
    typer.Option(
        "--tokenizer", "--model", metavar="PATH", help="A Hugging Face folder, or a name on the hub: render the rows."
    ),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let the tokenizer run code that comes with it.")
]


@app.command()
def check(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|KEY=VALUE",
            help="Parquet or JSONL files or quoted globs, and the keys of training that concern them, such as "
            "data.prompt_key=question or data.max_prompt_length=1024.",
        ),
    ],
    schema: SchemaOption = None,
    tokenizer: TokenizerOption = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Check every row of files: which row and field is wrong, and what to do.

    Warnings tell what is allowed but makes for bad training, such as copies of rows and empty answers.
    With a tokenizer every row is rendered: how long are prompts, and which does the chat template refuse?
    The exit code is 1 if anything is wrong.
    """

    def run() -> None:
        from verl_cli.data_files import check_files

        if not check_files(arguments, schema, tokenizer, trust_remote_code=trust_remote_code, as_json=as_json):
            raise typer.Exit(1)

    guarded(run)


@app.command()
def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A Parquet or JSONL file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="The keys of training that concern rows, as for check."),
    ] = None,
    schema: SchemaOption = None,
    tokenizer: TokenizerOption = None,
    trust_remote_code: TrustRemoteCode = False,
    count: Annotated[
        int | None, typer.Option("-n", min=1, help="How many rows; by default 3, or 1 with --row.")
    ] = None,
    row: Annotated[int | None, typer.Option("--row", min=0, help="The first row to show, counted from 0.")] = None,
) -> None:
    """Print a few rows as the model is given them.

    With a tokenizer, its chat template renders them: special tokens, the number of tokens, and what is trained.
    Ground truth, data source and the other columns follow, shortened.
    """

    def run() -> None:
        from verl_cli.data_files import show_file

        show_file(
            file,
            overrides or [],
            schema,
            tokenizer,
            trust_remote_code=trust_remote_code,
            first=row or 0,
            count=count or (3 if row is None else 1),
        )

    guarded(run)
