"""Secrets of every kind, and a rollout or a text after `redact`."""

from rollout_hookspecs import Rollout

from rollout_plugins.plugins.redact import Redact

KEY = "sk-" + "a1B2" * 8
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789"

SECRETS = {
    "openai": [KEY, "sk-proj-" + LETTERS, "sk-ant-api03-" + LETTERS],
    "huggingface": ["hf_" + LETTERS[:34]],
    "github": ["ghp_" + LETTERS[:36], "github_pat_" + LETTERS],
    "gitlab": ["glpat-" + LETTERS[:20]],
    "slack": ["xoxb-123456789012-abcdefABCDEF"],
    "aws": ["AKIAIOSFODNN7EXAMPLE"],
    "google": ["AIza" + LETTERS[:35], "ya29." + LETTERS],
    "stripe": ["sk_live_" + LETTERS[:24]],
    "package_index": ["npm_" + LETTERS[:36], "pypi-" + LETTERS + LETTERS],
    "vendor": ["gsk_" + LETTERS + LETTERS[:6], "nvapi-" + LETTERS + LETTERS],
    "jwt": ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"],
    "private_key": [
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUA\ncut2",
    ],
}  # fmt: skip


def redacted(plugin=None, **values):
    plugin = plugin or Redact()
    before = Rollout(id="r", **values)
    return plugin.on_rollout(before) or before


def text(content, plugin=None):
    return redacted(plugin, prompt=({"role": "user", "content": content},)).prompt[0]["content"]
