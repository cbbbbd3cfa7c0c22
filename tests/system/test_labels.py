"""A person knows which run, model and rollout is meant from what they are called."""

import pytest
from rollout_hookspecs import Run

from rollout_plugins.system.labels import BatchNames, model_name, run_name

BY_CHANCE = "20261122-081500-a1b2c3"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
        ("gpt2", "gpt2"),
        ("/data/out/shop/checkpoint-40/", "shop/checkpoint-40"),
        ("out\\shop\\final", "shop"),
        ("checkpoint", "checkpoint"),
        (f"/hub/models--Qwen--Qwen3-0.6B/snapshots/{'0f' * 20}", "models--Qwen--Qwen3-0.6B"),
        ("/", ""),
        ("", ""),
    ],
)
def test_a_model_is_called_by_what_says_something(model, name):
    assert model_name(model) == name


@pytest.mark.parametrize(
    ("folder", "run", "name"),
    [
        ("/w/outputs/shop-rollouts", BY_CHANCE, "tiny · shop"),
        ("/w/outputs/shop/_rollouts", BY_CHANCE, "tiny · shop"),
        ("/w/outputs/shop/rollouts", BY_CHANCE, "tiny · shop"),
        ("/w/runs", BY_CHANCE, "tiny · runs"),
        ("/w/runs", "exp-7", "tiny · exp-7"),
        ("", BY_CHANCE, "tiny"),
    ],
)
def test_a_run_is_called_by_its_model_and_output_folder_or_the_id_somebody_chose(folder, run, name):
    assert run_name(Run(id=run, dir=f"{folder}/{run}" if folder else "", model="org/tiny")) == name


def test_a_run_keeps_its_name_where_it_is_moved_to_and_is_called_the_same_from_everywhere(monkeypatch, tmp_path):
    moved = Run(id=BY_CHANCE, name="shop", dir=f"/w/mail/{BY_CHANCE}", model="org/tiny")
    assert run_name(moved) == "tiny · shop"
    (tmp_path / "shop-rollouts").mkdir()
    monkeypatch.chdir(tmp_path / "shop-rollouts")
    assert run_name(Run(id=BY_CHANCE, dir=BY_CHANCE, model="org/tiny")) == "tiny · shop"


def test_a_run_of_which_nothing_is_known_is_called_by_its_id():
    assert run_name(Run(id=BY_CHANCE)) == BY_CHANCE


def test_batches_are_called_by_their_step_and_never_alike():
    run, other = Run(id="r"), Run(id="r", attempt=2)
    names = BatchNames()
    asked = [(run, "train", 20), (run, "train", 20), (run, "eval", 20), (run, "train", 21), (other, "train", 20)]
    assert [names.name(*one) for one in asked] == ["r.1.t20", "r.1.t20-2", "r.1.e20", "r.1.t21", "r.2.t20"]
