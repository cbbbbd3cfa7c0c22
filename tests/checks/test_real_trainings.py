"""Faults that are put into real trainings are found in what was recorded, and healthy trainings stay silent."""

import pytest
from checked import names_found
from faulty_trainings import TRAININGS, train

#: The trainings that run without -m slow: two healthy ones and one fault of each kind.
FEW = {"healthy chat", "format reward always 0", "a tool always fails", "answers are cut off"}


def chosen(names):
    return [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", chosen(name for name, training in TRAININGS.items() if training.check))
def test_fault_in_a_training_is_found(tmp_path, name):
    found = names_found(train(tmp_path, name))
    assert TRAININGS[name].check in found, found


@pytest.mark.parametrize("name", chosen(name for name, training in TRAININGS.items() if not training.check))
def test_healthy_training_has_no_finding(tmp_path, name):
    assert names_found(train(tmp_path, name)) == {}
