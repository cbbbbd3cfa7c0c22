"""Report what is wrong with a stored run, and what recording it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_plugins.reading import summary
from rollout_plugins.reading.missing import missing_files, missing_rollouts
from rollout_plugins.reading.multi_node import absent

if TYPE_CHECKING:
    from pathlib import Path

    from rollout_plugins.reading.damage import Damaged
    from rollout_plugins.reading.query_session import Session
    from rollout_plugins.reading.recorded_facts import Facts


class RunHealth:
    """The health of one run: damage, losses, failures while recording, and the cost of recording."""

    def __init__(self, folder: Path, damaged: Damaged, facts: Facts, session: Session) -> None:
        self._folder, self._facts, self._session = folder, facts, session
        self.damaged = damaged
        """Files and single rollouts that could not be read so far, with the reason; everything else is readable."""

    def verify(self) -> None:
        """Read every file to its end, so that `damaged` is complete."""
        self._session.verify()

    @property
    def unreadable(self) -> list[str]:
        """One line for each thing that cannot be read: damaged files, missing files and missing rollouts.

        Rollouts are missing if the run files count more of them than the data files hold, for any attempt, rank and
        split.
        """
        missing = self._session.ask(lambda database: missing_rollouts(self._folder, self._facts.attempts, database))
        return [*map(self.damaged.describe, self.damaged), *missing, *missing_files(self._folder)]

    @property
    def contradictions(self) -> list[str]:
        """One line for each fact that two ranks or nodes of the run recorded differently."""
        return self._facts.contradictions

    @property
    def absent(self) -> list[str]:
        """One line for each part of the run that other nodes have and this folder does not."""
        return absent(self._folder, self._facts)

    @property
    def drops(self) -> dict[str, int]:
        """The number of rollouts lost while recording, by reason, over all ranks and attempts."""
        return self._facts.total("drops")

    @property
    def untrained(self) -> dict[str, int]:
        """The number of stored rollouts that the trainer generated but did not train on, by reason.

        Steps that a resumed training repeated are not counted twice.
        """
        return self._facts.untrained

    @property
    def unsent(self) -> dict[str, int]:
        """The number of stored rollouts that each sink missed while training; `run.export` sends them."""
        return self._facts.total("unsent")

    @property
    def skipped(self) -> dict[str, int]:
        """The number of stored rollouts that each plugin kept from the sinks."""
        return self._facts.total("skipped")

    @property
    def not_finite(self) -> dict[str, dict[str, int]]:
        """The number of NaN and infinite rewards by column: `{"reward/correct": {"nan": 7, "infinite": 1}}`."""
        rows = self._session.ask(lambda database: database.rows(summary.NOT_FINITE))
        return {name: {"nan": nan, "infinite": infinite} for name, nan, infinite in rows}

    @property
    def plugin_errors(self) -> dict[str, int]:
        """The number of failures of each plugin; three in a row disable a plugin for the rest of its run."""
        return self._facts.total("plugin_errors")

    @property
    def warnings(self) -> dict[str, int]:
        """The warnings that recording logged, with the number of times."""
        return self._facts.total("warnings")

    @property
    def costs(self) -> dict[str, float]:
        """What recording cost: seconds on the training thread and on the worker, bytes written, and the peak queue."""
        return self._facts.costs
