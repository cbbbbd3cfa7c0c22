"""A stand-in for the `openreward` client and the service behind it: a game of guessing a number."""

from contextlib import contextmanager
from types import SimpleNamespace

NUMBERS = (3, 5)
TOOLS = [
    {
        "name": "guess",
        "description": "Guess the number.",
        "input_schema": {
            "type": "object",
            "properties": {"number": {"type": "integer", "description": "the guess"}},
            "required": ["number"],
        },
    },
    {"name": "cheat", "description": "Look at the number.", "input_schema": {"type": "object", "properties": {}}},
]


class OpenReward:
    def __init__(self, base_url=None, api_key=None):
        self.environments = SimpleNamespace(get=lambda name: Environment())


class Environment:
    def list_tools(self):
        return TOOLS

    def num_tasks(self, split):
        return len(NUMBERS)

    def get_task(self, split, index):
        return {"number": NUMBERS[index], "level": "easy"}

    def list_tasks(self, split):
        return [self.get_task(split, index) for index in range(len(NUMBERS))]

    @contextmanager
    def session(self, split=None, index=None, secrets=None):
        yield Session(NUMBERS[index])


class Session:
    def __init__(self, number):
        self._number = number

    def list_tools(self):
        return TOOLS

    def get_prompt(self):
        return [{"type": "text", "text": f"Guess a number, not above {2 * self._number}."}]

    def call_tool(self, name, arguments):
        if name == "cheat":
            raise RuntimeError("no cheating")
        right = arguments["number"] == self._number
        text = {"type": "text", "text": "right" if right else "wrong"}
        return SimpleNamespace(blocks=[text], reward=float(right), metadata=None, finished=right)
