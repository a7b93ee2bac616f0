"""A run's directory: what is published, what stays private, and when it may be written to."""

from __future__ import annotations

import math
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedDP.errors import FedDPError
from fedDP.scenario.load import load_scenario
from fedDP.scenario.run_directory import Checkpoint, RunDirectory
from fedDP.scenario.strict_json import strict_json
from tests.scenario.runs import hospital, strict


def test_a_new_directory_holds_the_scenario_and_a_private_folder(tmp_path: Path) -> None:
    scenario = hospital()
    directory = RunDirectory(tmp_path / "a b" / "run", scenario)
    assert [path.name for path in directory.path.iterdir()] == ["scenario.toml"]
    assert load_scenario(directory.scenario_path) == scenario
    assert directory.private == tmp_path / "a b" / "run.private"
    assert directory.private.stat().st_mode & 0o777 == 0o700


def test_a_private_folder_that_was_opened_up_is_closed_again(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run", hospital()).private.chmod(0o755)
    assert RunDirectory(tmp_path / "run", hospital()).private.stat().st_mode & 0o777 == 0o700


def test_the_working_directory_can_be_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    directory = RunDirectory(Path("."), hospital())
    assert directory.private == tmp_path / "here.private"
    assert (tmp_path / "here" / "scenario.toml").exists()


def test_the_root_of_the_file_system_is_refused() -> None:
    with pytest.raises(FedDPError, match="no run directory"):
        RunDirectory(Path("/"), hospital())


def test_a_finished_directory_is_refused(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run", hospital()).write_summary({"status": "completed"})
    with pytest.raises(FedDPError, match=r"finished run .* is not written to again"):
        RunDirectory(tmp_path / "run", hospital())


def test_an_unfinished_directory_belongs_to_its_scenario(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run", hospital())
    RunDirectory(tmp_path / "run", hospital())
    with pytest.raises(FedDPError, match="unfinished run of another scenario"):
        RunDirectory(tmp_path / "run", hospital(3))


def test_foreign_files_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.docx").write_text("")
    for name in ("file", "folder"):
        with pytest.raises(FedDPError, match="is not a run directory"):
            RunDirectory(tmp_path / name, hospital())
    with pytest.raises(FedDPError, match="cannot be created"):
        RunDirectory(tmp_path / "file" / "run", hospital())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_what_a_crash_leaves_of_a_first_file_is_not_foreign(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "scenario.toml.tmp").write_text("[scena")
    directory = RunDirectory(tmp_path / "run", hospital())
    assert [path.name for path in directory.path.iterdir()] == ["scenario.toml"]


def test_a_reader_finds_the_old_checkpoint_or_the_new_one_at_any_moment(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", hospital())
    first = Checkpoint(
        round=0, run_id="r", arrays={}, inner_state=bytes(100_000), rounds=[], enrolment_sha256="e", seconds=0.0
    )
    directory.save_checkpoint(first)
    found: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            checkpoint = directory.load_checkpoint()
            assert checkpoint is not None
            found.append(checkpoint.round)

    reader = threading.Thread(target=read)
    reader.start()
    for round in range(1, 51):
        directory.save_checkpoint(replace(first, round=round))
    done.set()
    reader.join()
    assert found == sorted(found)
    assert len(found) > 10


def test_default_directories_are_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = [RunDirectory(RunDirectory.default_path(hospital()), hospital()).path for _ in range(3)]
    assert len(set(made)) == 3
    assert all(path.parent == Path("runs") and path.name.startswith("hospital-") for path in made)


def test_checkpoints_come_back(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", hospital())
    assert directory.load_checkpoint() is None
    checkpoint = Checkpoint(
        round=3, run_id="r", arrays={}, inner_state=b"state", rounds=[{"round": 3}], enrolment_sha256="e", seconds=1.5
    )
    directory.save_checkpoint(checkpoint)
    assert directory.load_checkpoint() == checkpoint
    assert [path.name for path in directory.checkpoint_path.parent.iterdir()] == ["latest.pickle"]


def test_a_checkpoint_that_is_none_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", hospital())
    directory.checkpoint_path.parent.mkdir()
    directory.checkpoint_path.write_bytes(b"N.")
    with pytest.raises(FedDPError, match="is not a checkpoint"):
        directory.load_checkpoint()


def test_a_private_folder_without_its_directory_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", hospital())
    checkpoint = Checkpoint(
        round=1, run_id="r", arrays={}, inner_state=b"", rounds=[], enrolment_sha256="e", seconds=0.0
    )
    directory.save_checkpoint(checkpoint)
    shutil.rmtree(directory.path)
    with pytest.raises(FedDPError, match="holds a checkpoint of a run whose directory"):
        RunDirectory(tmp_path / "run", hospital())
    assert not directory.path.exists()
    shutil.rmtree(directory.private)
    RunDirectory(tmp_path / "run", hospital())


class Tied(nn.Module):
    """Two names for one parameter, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.steps: torch.Tensor
        self.register_buffer("steps", torch.tensor(7))


def test_a_model_loads_strict_with_tied_parameters_and_buffers(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", hospital())
    model = Tied()
    trained = torch.full((2, 2), 5.0).numpy()
    directory.save_model(model, {"first.weight": trained})
    state = load_file(directory.model_path)
    assert set(state) == {"first.weight", "second.weight", "steps"}
    other = Tied()
    other.load_state_dict(state, strict=True)
    assert torch.equal(other.second.weight, torch.full((2, 2), 5.0))
    assert int(other.steps) == 7
    # Published like its neighbours, not for its owner alone.
    assert directory.model_path.stat().st_mode == directory.scenario_path.stat().st_mode


def test_json_is_strict() -> None:
    value = {"a": math.inf, "b": [-math.inf, math.nan, (1.5,)], "c": {"d": None}}
    assert strict(strict_json(value)) == {"a": "inf", "b": [None, None, [1.5]], "c": {"d": None}}
