"""The targets of messages: webhooks, commands and functions. Messages are delivered on a separate thread."""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

logger = logging.getLogger("rollout_plugins")

DASHBOARDS = ("trackio", "wandb")
"""Sinks that show every finding as an alert, including the first time that a rule holds."""
KINDS = "webhook:URL, slack:URL, command:WORDS, trackio, wandb, or a function of a title and a text"
SECONDS = 10.0
"""How long one delivery may take."""
ATTEMPTS = 2
#: Messages that wait for a slow target; more are held back and counted.
LIMIT = 100
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@dataclass(frozen=True, slots=True)
class Message:
    """The content of one alert."""

    title: str
    text: str
    severity: str
    command: str
    """The command that shows the evidence."""
    check: str
    steps: Sequence[int]
    rollouts: Sequence[str]
    run: str
    folder: str


@dataclass(frozen=True, slots=True)
class Target:
    """A destination for messages."""

    label: str
    """Its name in logs: kind and host, without anything that may be secret."""
    deliver: Callable[[Message], object]


def parse_target(value: Any) -> Target | str:
    """Return the target that an option describes, or what is wrong with it. Error texts never contain a URL's path."""
    if callable(value):
        label = f"function {getattr(value, '__name__', type(value).__name__)}"
        return Target(label, lambda message: value(message.title, f"{message.text}\n{message.command}"))
    if not isinstance(value, str):
        return f"target {type(value).__name__} is none of {KINDS}"
    if value in DASHBOARDS:
        return Target(value, lambda _: None)  # a finding reaches their sinks without us
    kind, _, rest = value.partition(":")
    unset = [name for name in _VARIABLE.findall(rest) if name not in os.environ]
    if unset:
        return f"target {kind!r} needs the environment variable {unset[0]}, which is not set"
    if kind in {"webhook", "slack"}:
        return _parse_url(kind, os.path.expandvars(rest))
    if kind == "command":
        return _parse_command(rest)
    return f"target {kind!r} is none of {KINDS}"


def _parse_url(kind: str, url: str) -> Target | str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return f"target {kind!r} needs a URL, such as {kind}:https://host/path"
    body = _slack_body if kind == "slack" else _body
    return Target(f"{kind}:{parts.hostname}", lambda message: _post(url, body(message)))


def _parse_command(text: str) -> Target | str:
    try:
        words = [os.path.expandvars(word) for word in shlex.split(text)]
    except ValueError as error:
        return f"target 'command' cannot be split into words: {error}"
    if not words:
        return "target 'command' names no program, such as command:notify-send"
    return Target(f"command:{os.path.basename(words[0])}", lambda message: _run(words, message))  # noqa: PTH119


def _body(message: Message) -> Mapping[str, Any]:
    names = ("title", "text", "severity", "command", "check", "steps", "rollouts", "run", "folder")
    return {name: getattr(message, name) for name in names}


def _slack_body(message: Message) -> Mapping[str, Any]:
    return {"text": f"*{message.title}*\n{message.text}\n`{message.command}`"}


def _post(url: str, body: Mapping[str, Any]) -> None:
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "rollout-plugins"}
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - http and https alone
    with urllib.request.urlopen(request, timeout=SECONDS) as response:  # noqa: S310
        response.read(1)


def _run(words: Sequence[str], message: Message) -> None:
    text = f"{message.text}\n{message.command}"
    subprocess.run(  # noqa: S603 - the user's own command, without a shell
        [*words, message.title, text],
        check=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


class Outgoing:
    """Delivers messages in order on a daemon thread of its own, which exists while there are some."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        """How many messages each target missed."""
        self._queue: queue.Queue[tuple[Target, Message]] = queue.Queue(LIMIT)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, target: Target, message: Message) -> None:
        """Queue a message; count it as missed if too many wait."""
        try:
            self._queue.put_nowait((target, message))
        except queue.Full:
            self._fail(target, "too many messages wait for it")
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="rollout-plugins-alerts", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the delivery of all messages, with a time limit; return whether all were delivered."""
        until = time.monotonic() + seconds
        while self._thread is not None and time.monotonic() < until:
            time.sleep(0.01)
        return self._thread is None

    def _work(self) -> None:
        while True:
            with self._lock:
                try:
                    target, message = self._queue.get_nowait()
                except queue.Empty:
                    self._thread = None
                    return
            self._deliver(target, message)

    def _deliver(self, target: Target, message: Message) -> None:
        for attempt in range(ATTEMPTS):
            try:
                target.deliver(message)
            except BaseException as error:  # the thread survives whatever a function raises
                reason = _reason(error)
                if attempt + 1 < ATTEMPTS:
                    time.sleep(1)
            else:
                return
        self._fail(target, reason)

    def _fail(self, target: Target, reason: str) -> None:
        self.failures[target.label] += 1
        # The same text each time: the run counts how often it was logged.
        logger.warning("an alert did not reach %s: %s", target.label, reason)


def _reason(error: BaseException) -> str:
    """Return why a delivery failed, without the URL or the arguments, which may hold secrets."""
    if isinstance(error, urllib.error.HTTPError):
        return f"it answered {error.code}"
    if isinstance(error, urllib.error.URLError):
        return f"no connection ({type(error.reason).__name__})"
    if isinstance(error, subprocess.CalledProcessError):
        return f"it exited with {error.returncode}"
    return type(error).__name__
