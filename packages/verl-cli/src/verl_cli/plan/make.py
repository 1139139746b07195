"""From a configuration to a plan: everything that can be known without a GPU and without torch."""

from collections.abc import Sequence

from verl_cli.config import Resolved, RunConfig
from verl_cli.errors import UserError
from verl_cli.plan import checks
from verl_cli.plan.algorithm import algorithm_words, own_function_problems
from verl_cli.plan.batch import batch, batch_problems, dynamic_sampling, schedule
from verl_cli.plan.data import (
    TRAINING_ROWS,
    VALIDATION_ROWS,
    DataLook,
    LookedAt,
    RowsInUse,
    look,
    prompt_problems,
    rows_in_use,
    too_few,
)
from verl_cli.plan.device import find_device
from verl_cli.plan.models_look import ACTOR, CRITIC, Located, ModelsLook, locate, measure
from verl_cli.plan.phases import memory_plan
from verl_cli.plan.placement import roles
from verl_cli.plan.plan import Plan
from verl_cli.plan.sample import Wanted, look_at_reward, sample_of
from verl_cli.plan.tokenizing import Answer, Question, TransformersProcess
from verl_cli.reported import wanted_numbers


def make_plan(resolved: Resolved) -> Plan:
    """Plan a run. Nothing is written, and whatever is wrong is listed in the plan instead of raised."""
    with TransformersProcess() as transformers:
        return plan_of(resolved.config, transformers, notices=resolved.notices)


def plan_of(
    config: RunConfig, transformers: TransformersProcess, *, problems: Sequence[str] = (), notices: Sequence[str] = ()
) -> Plan:
    """Plan a configuration that may have `problems` of its own, as far as it can be understood."""
    if config.actor_rollout_ref.model.trust_remote_code and transformers.without_torch:
        with TransformersProcess(without_torch=False) as other:
            return plan_of(config, other, problems=problems, notices=notices)
    device = find_device(config.trainer.device)
    training = look(config.data.train_files, "data.train_files", config.data, TRAINING_ROWS, training=True)
    validation = look(config.data.val_files, "data.val_files", config.data, VALIDATION_ROWS)
    located = locate(config)
    answer, unanswered = _ask(config, located, training, validation, transformers)
    models = measure(located, answer)
    used, lengths, of_data = _data_problems(config, training, validation, answer)
    timing = schedule(config, used)
    steps = timing.steps if timing else config.trainer.total_training_steps
    run_dir = checks.look_at_run_dir(config, steps)
    plan = Plan(
        device=device,
        roles=roles(config, device.kind),
        batch=batch(config, lengths, training.looked_at, training.total, steps),
        run_dir=str(run_dir.path),
        problems=[
            *problems,
            *([device.problem] if device.problem else []),
            *located.problems,
            *unanswered,
            *answer.problems,
            *models.problems,
            *of_data,
            *batch_problems(config, steps),
            *run_dir.problems,
            *own_function_problems(config),
        ],
        notices=[*notices, *run_dir.notices],
        algorithm=algorithm_words(config),
        dynamic_sampling=dynamic_sampling(config, timing),
        schedule=timing,
        mix=training.mix,
        order_by=config.data.order_by,
        start_step=run_dir.start.step if run_dir.start else 0,
    )
    _add_models(plan, config, models, answer, lengths)
    _add_sample(plan, config, training, validation, answer)
    return plan


def _ask(
    config: RunConfig, located: Located, training: DataLook, validation: DataLook, transformers: TransformersProcess
) -> tuple[Answer, list[str]]:
    """What transformers says, and why it says nothing if so."""
    if not located.models and located.tokenizer is None:
        return Answer(), []
    question = Question(
        tokenizer=located.tokenizer,
        trust_remote_code=config.actor_rollout_ref.model.trust_remote_code,
        models=located.models,
        same_vocabulary=located.two_folders,
        data=config.data,
        rows=[found.row for found in (*training.rows, *validation.rows)],
    )
    try:
        return transformers.ask(question), []
    except UserError as error:
        return Answer(), [str(error)]


def _data_problems(
    config: RunConfig, training: DataLook, validation: DataLook, answer: Answer
) -> tuple[RowsInUse, list[int], list[str]]:
    """The training rows in use, the lengths of those of their prompts that the run takes, and what is wrong."""
    border = len(training.rows)
    problems = []
    in_use = {}
    for found, first, last in ((training, 0, border), (validation, border, len(answer.lengths))):
        lengths = answer.lengths[first:last]
        refusals = {place - first: why for place, why in answer.refusals.items() if first <= place < last}
        in_use[found.key] = rows_in_use(found, lengths, config.data, training=found is training)
        problems += [*found.problems, *prompt_problems(found, lengths, refusals, config.data)]
        if found.total or (found.files and not found.problems):
            problem = too_few(found, in_use[found.key], config.data, training=found is training)
            problems += [problem] if problem else []
    limit = config.data.max_prompt_length
    cut = config.data.truncation != "error" and not config.data.filter_overlong_prompts
    known = [length for length in answer.lengths[:border] if length is not None]
    return (
        in_use[training.key],
        [min(length, limit) for length in known if length <= limit or cut],
        list(dict.fromkeys(problems)),
    )


def _add_models(plan: Plan, config: RunConfig, models: ModelsLook, answer: Answer, lengths: list[int]) -> None:
    """Memory, room for checkpoints, and whether model, tokenizer and lengths fit together."""
    if problem := checks.vocabulary_problem(answer.vocabulary, models.vocabularies.get(ACTOR)):
        plan.problems.append(problem)
    if warning := checks.context_warning(config, models.contexts.get(ACTOR)):
        plan.warnings.append(warning)
    wanted = (ACTOR, CRITIC) if config.needs_critic else (ACTOR,)
    if not all(key in models.sizes for key in wanted):
        plan.memory_unknown = next((models.unknown[key] for key in wanted if key in models.unknown), "see the problems")
        return
    actor, critic = models.sizes[ACTOR], models.sizes.get(CRITIC)
    fits = all(updates.micro_batches.worst for updates in plan.batch.updates)
    if not fits or (plan.batch.reference and not plan.batch.reference.worst):
        plan.memory_unknown = "a sequence does not fit into a micro-batch"
    else:
        plan.memory = memory_plan(config, plan.device.kind, actor, critic, lengths or [config.data.max_prompt_length])
        for wrong, text in checks.memory_verdict(plan.memory, plan.device):
            (plan.problems if wrong else plan.warnings).append(text)
    if plan.schedule and plan.schedule.checkpoints:
        plan.disk = checks.disk(config, actor, critic, len(plan.schedule.checkpoints), plan.run_dir)
        problem = checks.disk_problem(plan.disk, plan.run_dir)
        plan.problems += [problem] if problem else []


def _add_sample(plan: Plan, config: RunConfig, training: DataLook, validation: DataLook, answer: Answer) -> None:
    """The first prompt, and the reward on answers to it."""
    shown = answer.shown if answer.shown is not None and answer.shown.row < len(training.rows) else None
    position = shown.row if shown else 0
    row = training.rows[position] if training.rows else None
    firsts: dict[str, LookedAt] = {}
    for found in training.rows:
        firsts.setdefault(found.row[config.data.reward_fn_key], found)
    wanted = Wanted(wanted_numbers(config.algorithm), list(firsts.values()))
    reward = look_at_reward(config.reward, config.data, row, training.sources | validation.sources, wanted)
    plan.reward = reward.what
    plan.problems += reward.problems
    plan.warnings += reward.warnings
    if row is not None and shown is not None:
        plan.sample = sample_of(row, shown, reward.tried, config.data)
