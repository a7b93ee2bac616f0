"""The sections of a scenario file, a frozen dataclass each, with every key, default and range.

`PrivacySpec` and `BudgetSpec` hold what the guarantee depends on. Nothing in `ResourcesSpec` can change a
result or a guarantee: it says only where and with how many threads the work is done.
"""

# ruff: noqa: RUF009  (`key` is `dataclasses.field` with a declaration in its metadata)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from fedDP.privacy import limits
from fedDP.ranges import Range
from fedDP.scenario import values
from fedDP.scenario.keys import Section, key

Task = Literal["binary", "multiclass"]
Sampling = Literal["poisson", "all"]
Accountant = Literal["auto", "pld", "rdp", "gdp"]
NeighboringRelation = Literal["zero_out", "add_remove", "replace_one"]
BudgetMode = Literal["auto", "gaussian", "renyi", "plan"]
CarryOver = Literal["none", "cumulative"]
Engine = Literal["ray", "local"]
Device = Literal["auto", "cpu"]

PACKAGED_DATA: Mapping[str, str] = {"heart-disease": "site"}
"""The data sets that ship with the package, each with its site column."""

SERVER_OPTIMIZERS = ("fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad")
DEFAULT_HIDDEN = (32,)

_STEP = Range(low=0.0, high=1e6, low_open=True)
_DECAY = Range(low=0.0, high=1.0, high_open=True)
_WHOLE = Range(low=1, high=10**6, integer=True)


@dataclass(frozen=True, kw_only=True)
class ScenarioSpec(Section):
    """``[scenario]``: what the study is called and whose data it protects."""

    section: ClassVar[str] = "scenario"

    name: str = key("unnamed", shape=values.NAME, help="Names the run directory.")
    unit: str = key("client", shape=values.UNIT, help="Whose data is hidden: patient, customer, branch, hospital.")
    seed: int | None = key(
        None, shape=values.SEED, help="Repeats a run bit for bit; its epsilon is nominal. Absent: the system's noise."
    )
    description: str = key("", shape=values.FREE_TEXT, help="Free text.")


@dataclass(frozen=True, kw_only=True)
class DataSpec(Section):
    """``[data]``: the table, its columns, and public knowledge about them."""

    section: ClassVar[str] = "data"

    name: str | None = key(None, choices=tuple(PACKAGED_DATA), help="Data that ships with the package.")
    path: str | None = key(None, shape=values.TEXT, help="A table of your own, relative to the file that names it.")
    public: bool = key(False, help="Declares the data public, so that simulation-only numbers may be shown.")
    population_id: str | None = key(
        None, shape=values.UNIT, help="Names the people or firms in the data; one ledger for each population."
    )
    target: str | None = key(None, shape=values.TEXT, help="The column to predict.")
    task: Task = key("binary", choices=get_args(Task), later=("regression",), help="What is predicted.")
    client_column: str | None = key(
        None, shape=values.TEXT, help="The column that says whose row it is. Absent: one row = one client."
    )
    site_column: str | None = key(None, shape=values.TEXT, help="The column that says where a row lives.")
    max_records: int = key(1000, range=_WHOLE, help="A client's records beyond this public cap are not used.")
    clients: None = key(None, later=True, help="Number of clients of an artificial partition.")
    partition: Literal["natural"] = key(
        "natural", choices=("natural",), later=("iid", "dirichlet", "pathological"), help="How rows become clients."
    )
    alpha: None = key(None, later=True, help="Concentration of the Dirichlet partition.")
    test_fraction: float = key(0.25, range=Range(low=0.0, high=0.9), help="Part of the clients that is held out.")
    features: tuple[str, ...] = key((), shape=values.COLUMNS, help="Columns to learn from. Empty: all.")
    drop: tuple[str, ...] = key((), shape=values.COLUMNS, help="Columns to leave out.")
    ranges: Mapping[str, tuple[float, float]] = key(
        {}, entries=values.INTERVAL, help='Public range of each numeric column; "*" for all others.'
    )
    categories: Mapping[str, tuple[float, ...]] = key(
        {}, entries=values.LEVELS, help="Public list of the values of each categorical column."
    )
    preprocessing: Literal["public-ranges"] = key(
        "public-ranges",
        choices=("public-ranges",),
        later=("charged-moments", "per-client", "benchmark"),
        help="How columns are scaled; statistics over several clients are not free.",
    )


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Section):
    """``[model]``: the model and its own keys.

    A model of one's own (``package.module:attribute``) may have any further keys; they are its `options`.
    """

    section: ClassVar[str] = "model"

    name: str = key(
        "logistic", choices=("logistic", "mlp"), shape=values.OBJECT_NAME, help="A known model or one of your own."
    )
    hidden: tuple[int, ...] = key((), shape=values.WIDTHS, help="mlp: the hidden widths. Absent: [32].")
    options: Mapping[str, object] = key({}, entries=values.OPTION, written=False, help="Keys of a model of your own.")
    freeze: None = key(None, later=True, help="Layers that are not trained.")
    initial: None = key(None, later=True, help="A file to start from.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "mlp" and not self.hidden:
            object.__setattr__(self, "hidden", DEFAULT_HIDDEN)


@dataclass(frozen=True, kw_only=True)
class ClientSpec(Section):
    """``[client]``: how a client trains."""

    section: ClassVar[str] = "client"

    trainer: Literal["vectorised"] = key(
        "vectorised", choices=("vectorised",), later=("opacus",), help="What trains a block of clients."
    )
    optimizer: Literal["sgd"] = key("sgd", choices=("sgd",), later=("adam", "adamw"), help="The clients' optimiser.")
    epochs: int = key(1, range=Range(low=1, high=1000, integer=True), help="Passes over a client's records.")
    batch_size: int = key(16, range=Range(low=1, high=100_000, integer=True), help="Records a step.")
    learning_rate: float = key(0.1, range=_STEP, help="Step size of the clients.")
    momentum: float = key(0.0, range=_DECAY, help="Momentum of the clients' sgd.")
    weight_decay: float = key(0.0, range=Range(low=0.0, high=1e3), help="L2 penalty on the weights.")
    proximal_mu: float = key(0.0, range=Range(low=0.0, high=1e6), help="FedProx: pull towards the global model.")
    block_size: int | None = key(
        None,
        range=Range(low=1, high=4096, integer=True),
        help="Clients trained as one batch. Absent: 64, or 32 for a large model.",
    )
    dp_sgd: None = key(None, later=True, help="Record-level privacy inside each client.")


@dataclass(frozen=True, kw_only=True)
class ServerSpec(Section):
    """``[server]``: rounds, and the step that is taken with each privatised mean update."""

    section: ClassVar[str] = "server"

    strategy: Literal["dp-fedavg"] = key("dp-fedavg", choices=("dp-fedavg",), later=True, help="The strategy.")
    rounds: int = key(10, range=_WHOLE, help="Noisy releases of the model.")
    optimizer: str = key(
        "fedavg", choices=SERVER_OPTIMIZERS, shape=values.OBJECT_NAME, help="The server's step, or one of your own."
    )
    learning_rate: float = key(1.0, range=_STEP, help="Step size of the server.")
    momentum: float = key(0.9, range=_DECAY, help="fedavgm: momentum.")
    beta_1: float = key(0.9, range=_DECAY, help="fedadam, fedyogi: decay of the mean.")
    beta_2: float = key(0.99, range=_DECAY, help="fedadam, fedyogi: decay of the square.")
    tau: float = key(1e-3, range=Range(low=0.0, high=1e3, low_open=True), help="fedadam, fedyogi, fedadagrad: floor.")
    rounds_per_week: int | None = key(
        None, range=_WHOLE, help="Rounds in a simulated ISO week. Absent: weeks are those of the system clock."
    )
    evaluate_every: int = key(
        1, range=Range(low=0, high=10**6, integer=True), help="Rounds between evaluations; 0: only at the end."
    )
    min_enrolled: int = key(1, range=limits.COUNT, help="Refuse to start with fewer clients enrolled.")


@dataclass(frozen=True, kw_only=True)
class ClippingSpec(Section):
    """``[privacy.clipping]``: how an update is brought to its norm bound."""

    section: ClassVar[str] = "privacy.clipping"

    kind: Literal["flat"] = key(
        "flat", choices=("flat",), later=("per-layer", "adaptive"), help="One bound on the norm of a whole update."
    )


@dataclass(frozen=True, kw_only=True)
class PrivacySpec(Section):
    """``[privacy]``: everything a release's guarantee depends on."""

    section: ClassVar[str] = "privacy"

    delta: float = key(1e-5, range=limits.DELTA, help="The delta of every epsilon; well below 1 / clients.")
    clip_norm: float = key(1.0, range=limits.CLIP_NORM, help="L2 bound on a client's whole update.")
    noise_multiplier: float | Literal["auto"] = key(
        "auto",
        choices=("auto",),
        range=Range(low=0.0, high=1e5),
        help="Noise on the sum / clip_norm. auto: the smallest that fits every window. 0: no privacy.",
    )
    target_epsilon: float | None = key(None, range=limits.EPSILON, help="Epsilon of the whole run.")
    sampling: Sampling = key("poisson", choices=get_args(Sampling), later=("fixed",), help="How cohorts are drawn.")
    sampling_rate: float | None = key(None, range=limits.SAMPLING_RATE, help="poisson: probability of each client.")
    cohort_size: int | None = key(None, range=limits.COUNT, help="poisson: expected cohort, instead of the rate.")
    accountant: Accountant = key("auto", choices=get_args(Accountant), help="Turns noise to epsilon in plans.")
    mechanism: Literal["gaussian"] = key("gaussian", choices=("gaussian",), later=("tree", "banded"), help="The noise.")
    neighboring_relation: NeighboringRelation = key(
        "zero_out", choices=get_args(NeighboringRelation), help="What differs between neighbouring data sets."
    )
    clipping: ClippingSpec = key(ClippingSpec(), help="How updates are clipped.")
    schedule: None = key(None, later=True, help="Noise, rate or clip norm that change with the rounds.")


@dataclass(frozen=True, kw_only=True)
class BudgetSpec(Section):
    """``[budget]``: what may be spent, and in which windows."""

    section: ClassVar[str] = "budget"

    start: str = key("2026-W01", shape=values.WEEK, help="First week of a simulated clock.")
    week: float | Literal["even"] | None = key(
        None, choices=("even",), range=limits.EPSILON, help="Epsilon of an ISO week. even: the year's, in equal parts."
    )
    year: float | None = key(None, range=limits.EPSILON, help="Epsilon of an ISO year.")
    trailing: float | None = key(
        None, range=limits.EPSILON, help="Epsilon of any 53 weeks. Absent: the year's, whenever year is set."
    )
    lifetime: float | None = key(None, range=limits.EPSILON, help="Epsilon of all weeks together.")
    reserve_evaluation: float = key(
        0.0,
        range=Range(low=0.0, high=1.0, high_open=True),
        help="Share of every window that rounds leave for evaluation, in the domain in which costs add up.",
    )
    carry_over: CarryOver = key(
        "none",
        choices=get_args(CarryOver),
        help="What becomes of a week's unused budget: it lapses, or adds to the weeks after it in the year.",
    )
    on_week_exhausted: Literal["stop"] = key(
        "stop", choices=("stop",), later=("wait",), help="What a run does when its week is spent."
    )
    mode: BudgetMode = key(
        "auto",
        choices=get_args(BudgetMode),
        help="The rule that admits charges. plan: this schedule and no other, the tightest. auto: says what and why.",
    )
    clock: str = key(
        "", choices=("system", "simulated"), help="Absent: simulated with server.rounds_per_week, else system."
    )
    ledger: str | None = key(
        None,
        shape=values.LEDGER,
        help="A path, sqlite:///path or postgresql://user@host/db. Absent: the run's own, or beside the data.",
    )


@dataclass(frozen=True, kw_only=True)
class ResourcesSpec(Section):
    """``[resources]``: where the work is done; never what comes out."""

    section: ClassVar[str] = "resources"

    engine: Engine = key("ray", choices=get_args(Engine), help="Ray workers, or this process alone.")
    nodes: int | Literal["auto"] = key(
        "auto", choices=("auto",), range=Range(low=1, high=4096, integer=True), help="Workers that serve the sites."
    )
    device: Device = key("auto", choices=get_args(Device), later=("cuda",), help="What trains.")
    gpus_per_node: None = key(None, later=True, help="Part of a GPU for each node.")
    threads: int = key(1, range=Range(low=1, high=256, integer=True), help="Threads of each node.")
    ray_address: str | None = key(None, shape=values.TEXT, help="A running Ray cluster. Absent: start one here.")
    precision: Literal["float32"] = key(
        "float32", choices=("float32",), later=("bfloat16",), help="Arithmetic of the training."
    )
    timeout_seconds: float = key(600.0, range=_STEP, help="The time a node may take for a round.")
