"""`rollouts report` as a person types it."""

from __future__ import annotations

import pytest
from report_data import data_of
from report_rig import fill

from rollout_plugins.cli.main import main


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    fill(folder, range(1, 5))
    return folder


@pytest.fixture
def said(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = main(["report", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_report_here(said, shop, tmp_path):
    assert said(shop) == (0, "72 rollouts in report.html, 170 kB\n".replace("170", size(tmp_path / "report.html")), "")


def size(path):
    return str(path.stat().st_size // 1024)


def test_some_of_them_elsewhere(said, shop, tmp_path):
    (tmp_path / "a").mkdir()
    code, out, err = said(shop, "-o", tmp_path / "a" / "b.html", "--limit", 16, "--split", "train")
    assert code == 0
    assert out.startswith("16 of 64 rollouts in ")
    assert "--limit for more" in err
    assert (tmp_path / "a" / "b.html").exists()


def test_a_file_of_somebody_else_is_kept(said, shop, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    code, _, err = said(shop)
    assert code == 1
    assert "--force" in err
    assert (tmp_path / "report.html").read_text() == "mine"
    assert said(shop, "--force")[0] == 0


def test_a_plugin_that_is_not_installed_shows_its_panels(said, shop, tmp_path):
    assert said(shop, "--limit", 2, "--plugin", "report_rig:Boards")[0] == 0
    shown = data_of(tmp_path / "report.html")["rollouts"][0]["panels"]
    assert [panel["title"] for panel in shown] == ["Board", "Moves"]


def test_what_was_wrong_is_said_in_a_line(said, shop):
    assert "no column is named" in said(shop, "--order", "rewrd")[2]
    assert "nowhere does not exist" in said("/nowhere")[2]
    code, _, err = said(shop, "--plugin", "no_such_module:thing")
    assert code == 1
    assert "no_such_module" in err
