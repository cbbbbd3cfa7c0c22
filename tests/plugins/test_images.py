"""Images leave the messages; one file for each, and a record that knows which it was."""

from __future__ import annotations

import base64
import io
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hostile import Evil, deep, encoded, picture, rollouts, shared
from hypothesis import given
from image_rig import MODES, PNG, files, noise, started, through
from PIL import Image as Pil
from rollout_hookspecs import Image, Placeholder, Rollout, Run, Step, ToolCall

from examples import thorough
from rollout_plugins.content.exact_json import decode, encode
from rollout_plugins.content.hashing import content_hash, pixel_hash
from rollout_plugins.content.messages import text_of
from rollout_plugins.errors import SetupError
from rollout_plugins.plugins import images
from rollout_plugins.plugins.images import Images
from rollout_plugins.plugins.images.media import MediaStore

HASH = pixel_hash(picture(5))


def block_of(plugin, block):
    return through(plugin, prompt=({"role": "user", "content": [block]},)).prompt[0]["content"][0]


def data_url(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


PIXELS = np.array(picture(5))
SPELLINGS = {
    "PIL": {"type": "image", "image": picture(5)},
    "opened, not decoded": {"type": "image", "image": Pil.open(io.BytesIO(PNG))},
    "bytes": {"type": "image", "image": PNG},
    "bytearray": {"type": "image", "image": bytearray(PNG)},
    "data URL": {"type": "image", "image": data_url(PNG)},
    "base64": {"type": "image", "base64": base64.b64encode(PNG).decode()},
    "numpy": {"type": "image", "image": PIXELS},
    "numpy, colours first": {"type": "image", "image": PIXELS.transpose(2, 0, 1)},
    "numpy, int64": {"type": "image", "image": PIXELS.astype("int64")},
    "tensor": {"type": "image", "image": torch.tensor(PIXELS).permute(2, 0, 1)},
    "tensor, 0 to 1": {"type": "image", "image": torch.tensor(PIXELS).permute(2, 0, 1) / 255},
    "tensor with a gradient": {
        "type": "image",
        "image": (torch.tensor(PIXELS).permute(2, 0, 1) / 255).requires_grad_(),
    },
    "datasets bytes": {"type": "image", "image": {"bytes": PNG, "path": None}},
    "image_url in a dict": {"type": "image_url", "image_url": {"url": data_url(PNG), "detail": "high"}},
    "image_url in text": {"type": "image_url", "image_url": data_url(PNG)},
    "input_image": {"type": "input_image", "image_url": data_url(PNG)},
    "source": {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
    },
}


def records_in(value):
    if isinstance(value, Image):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [record for item in inside for record in records_in(item)]


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_form_of_an_image_becomes_the_same_file(tmp_path, name):
    plugin = started(tmp_path)
    block = SPELLINGS[name]
    new = block_of(plugin, block)
    (record,) = records_in(new)
    assert (record.hash, record.path, record.width, record.height) == (HASH, f"media/{HASH}.png", 6, 4)
    assert np.array_equal(np.array(Pil.open(tmp_path / record.path)), PIXELS)
    assert {key: value for key, value in new.items() if key not in {"image", "image_url", "base64", "source"}} == {
        key: value for key, value in block.items() if key not in {"image", "image_url", "base64", "source"}
    }
    assert text_of([new]) == "[IMAGE]"
    assert decode(encode(new)) == new


def test_only_the_url_of_an_image_block_is_replaced(tmp_path):
    new = block_of(started(tmp_path), SPELLINGS["image_url in a dict"])
    assert new["image_url"]["detail"] == "high"
    assert new["image_url"]["url"].hash == HASH


@pytest.mark.parametrize(
    "spell", [str, Path, lambda path: f"file://{path}", lambda path: {"bytes": None, "path": str(path)}]
)
def test_paths_are_read_and_remembered(tmp_path, spell):
    path = tmp_path / "a picture.png"
    path.write_bytes(PNG)
    record = block_of(started(tmp_path), {"type": "image", "image": spell(path)})["image"]
    assert (record.hash, record.uri) == (HASH, str(path))


@pytest.mark.parametrize("url", ["https://x.org/cat.png", "http://x.org/a?b=c", "gs://bucket/cat.jpg", "s3://b/c"])
def test_remote_urls_are_references_and_never_fetched(tmp_path, url, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("fetched"))
    plugin = started(tmp_path)
    for block in ({"type": "image", "url": url}, {"type": "image_url", "image_url": {"url": url}}):
        (record,) = records_in(block_of(plugin, block))
        assert (record.uri, record.path, record.note) == (url, None, "remote, not fetched")
    assert files(tmp_path) == []


def test_images_are_found_wherever_they_are(tmp_path):
    tool = {"role": "tool", "content": [{"type": "image", "image": picture(2)}, {"type": "text", "text": "seen"}]}
    new = through(
        started(tmp_path),
        prompt=({"role": "user", "content": [{"type": "image", "image": picture(1)}, picture(2)]},),
        completion=({"role": "assistant", "content": "look"}, tool),
        tool_calls=(ToolCall(name="look", arguments={}, result=tool["content"]),),
        columns={"image": picture(1), "shots": [picture(3)], "scan": {"bytes": encoded(4), "path": "x.png"}},
        extra={"plot": picture(6)},
    )
    want = [pixel_hash(picture(i)) for i in (1, 2, 2, 3, 4, 6)]
    assert [record.hash for record in new.images] == want
    assert new.completion[1]["content"][1] == {"type": "text", "text": "seen"}
    assert new.tool_calls[0].result[0]["image"].hash == pixel_hash(picture(2))
    assert new.columns["scan"].uri == "x.png"
    assert len(files(tmp_path)) == 5
    assert encode(replace(new).columns).count("$lost") == 0


def test_messages_are_replaced_never_changed(tmp_path):
    image = picture(1)
    content = [{"type": "image", "image": image}]
    message = {"role": "user", "content": content}
    new = through(started(tmp_path), prompt=(message, {"role": "user", "content": "text"}))
    assert message["content"] is content
    assert content[0]["image"] is image
    assert new.prompt[0] is not message


def test_rollouts_without_images_are_left_alone(tmp_path):
    rollout = Rollout(
        id="r", prompt=({"role": "user", "content": "hi"},), columns={"image": None, "images": [], "n": 1}
    )
    assert started(tmp_path).on_rollout(rollout) is None
    assert not (tmp_path / "media").exists()


def test_text_stays_text(tmp_path):
    picture_path = tmp_path / "cat.png"
    picture_path.write_bytes(PNG)
    call = {"function": {"name": "show", "arguments": {"image": str(picture_path), "url": "https://x.org/a.png"}}}
    rollout = Rollout(
        id="r",
        prompt=(
            {"role": "user", "content": data_url(PNG)},
            {"role": "user", "content": [{"type": "text", "image": None, "text": "https://x"}]},
        ),
        completion=({"role": "assistant", "content": "x", "tool_calls": [call]},),
        tool_calls=(ToolCall(name="show", arguments=call["function"]["arguments"]),),
        columns={
            "image": "a caption",
            "audio": {"bytes": b"RIFF0000WAVE", "path": "a.wav"},
            "blob": b"BMnot an image",
        },
    )
    assert started(tmp_path).on_rollout(rollout) is None


def test_arrays_count_only_where_an_image_is_expected(tmp_path):
    columns = {"embedding": PIXELS, "image": PIXELS, "images": [torch.zeros(3, 4, 4), np.zeros((5, 5, 5))]}
    new = through(started(tmp_path), columns=columns)
    assert new.columns["embedding"] is PIXELS
    assert new.columns["image"].hash == HASH
    assert isinstance(new.columns["images"][0], Image)
    assert new.columns["images"][1] is columns["images"][1]


def test_bare_blocks_get_the_images_of_the_row(tmp_path):
    prompt = ({"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "which?"}]},)
    new = through(started(tmp_path), prompt=prompt, columns={"images": [picture(1), picture(2)]})
    assert [block["image"].hash for block in new.prompt[0]["content"][:2]] == [pixel_hash(picture(i)) for i in (1, 2)]
    assert len(new.images) == 2
    uneven = through(started(tmp_path), prompt=prompt, columns={"image": picture(1)})
    assert uneven.prompt == prompt
    assert len(uneven.images) == 1


def test_one_file_for_siblings_epochs_and_resumes(tmp_path, monkeypatch):
    first = started(tmp_path)
    for _ in range(16):
        through(first, columns={"image": picture(1)}, extra={"png": encoded(1), "bmp": encoded(1, "BMP")})
    assert len(files(tmp_path)) == 1
    stat = (tmp_path / "media" / files(tmp_path)[0]).stat()
    monkeypatch.setattr(Pil.Image, "save", lambda *_, **__: pytest.fail("encoded again"))
    resumed = through(started(tmp_path), columns={"image": picture(1)})
    assert resumed.columns["image"].path == f"media/{files(tmp_path)[0]}"
    assert (tmp_path / "media" / files(tmp_path)[0]).stat().st_mtime_ns == stat.st_mtime_ns


def test_ranks_may_write_the_same_image_at_the_same_time(tmp_path):
    stores = [MediaStore(tmp_path) for _ in range(8)]
    images = [np.random.default_rng(i).integers(0, 255, (64, 64, 3), "uint8") for i in range(8)]
    start = threading.Barrier(len(stores))

    def write(store):
        start.wait()
        for image in images:
            store.put(Pil.fromarray(image))

    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(write, stores))
    assert len(files(tmp_path)) == 8
    assert {pixel_hash(Pil.open(tmp_path / "media" / name).copy()) for name in files(tmp_path)} == {
        name.removesuffix(".png") for name in files(tmp_path)
    }


def test_half_written_and_empty_files_do_not_count(tmp_path):
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / ".1.tmp").write_bytes(b"half")
    (tmp_path / "media" / f"{HASH}.png").write_bytes(b"")
    record = block_of(started(tmp_path), {"type": "image", "image": PNG})["image"]
    assert (tmp_path / record.path).read_bytes() == PNG


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_encoded_files_are_kept_byte_for_byte(tmp_path, kind):
    data = encoded(5, kind)
    record = block_of(started(tmp_path), {"type": "image", "image": data})["image"]
    assert (tmp_path / record.path).read_bytes() == data
    assert record.note is None


@pytest.mark.parametrize("mode", MODES)
def test_any_mode_is_kept_exactly_or_says_what_changed(tmp_path, mode):
    pixels = np.random.default_rng(0).integers(0, 255, 4 * 3 * 4, "uint8").tobytes()
    image = Pil.new(mode, (4, 3))
    image.frombytes((pixels * 4)[: len(image.tobytes())])
    record = block_of(started(tmp_path), {"type": "image", "image": image})["image"]
    stored = Pil.open(tmp_path / record.path)
    stored.load()
    if record.note is None:
        shown = [np.array(each.convert("RGBA") if mode == "P" else each) for each in (stored, image)]
        assert np.array_equal(*shown)
        assert record.hash == pixel_hash(image)
    else:
        assert record.note.startswith(f"{mode} converted to")
    for how in ({"format": "webp"}, {"format": "jpeg"}):
        small = block_of(started(tmp_path / how["format"], "thumbnail", **how), {"type": "image", "image": image})
        Pil.open(tmp_path / how["format"] / small["image"].path).load()


def test_thumbnails_are_small_and_have_a_note(tmp_path):
    record = through(started(tmp_path, "thumbnail", max_side=32), columns={"a": picture(1, (640, 320))}).columns["a"]
    stored = Pil.open(tmp_path / record.path)
    assert (stored.format, stored.size) == ("WEBP", (32, 16))
    assert (record.width, record.height, record.note) == (640, 320, "thumbnail")
    jpeg = through(
        started(tmp_path / "j", "thumbnail", format="jpeg", quality=5), columns={"a": picture(1, (640, 320))}
    )
    assert Pil.open(tmp_path / "j" / jpeg.columns["a"].path).format == "JPEG"


def test_max_side_touches_only_larger_images(tmp_path):
    plugin = started(tmp_path, max_side=64)
    large, small = (through(plugin, columns={"a": picture(1, size)}).columns["a"] for size in ((640, 320), (64, 10)))
    assert Pil.open(tmp_path / large.path).size == (64, 32)
    assert (large.width, large.note) == (640, "at most 64 pixels per side")
    assert small.note is None


def test_strip_writes_nothing_and_keeps_the_hash(tmp_path):
    record = through(started(tmp_path, "strip"), columns={"a": picture(5)}).columns["a"]
    assert (record.hash, record.width, record.path, record.note) == (HASH, 6, None, "pixels stripped")
    assert not (tmp_path / "media").exists()


def test_over_budget_come_thumbnails_then_references(tmp_path):
    budget = 120_000
    plugin = started(tmp_path, budget=budget)
    records = [through(plugin, columns={"a": noise(i)}).columns["a"] for i in range(24)]
    kinds = ["full" if r.note is None else "small" if r.path else "reference" for r in records]
    assert kinds == sorted(kinds, key=["full", "small", "reference"].index)
    assert set(kinds) == {"full", "small", "reference"}
    assert sum(path.stat().st_size for path in (tmp_path / "media").iterdir()) <= budget
    seen = [Rollout(id="r", images=tuple(records))]
    figures = plugin.rollout_metrics(seen, Step())
    assert figures["images/without_pixels"] == kinds.count("reference")
    assert figures["images/reduced"] == kinds.count("small")
    assert 0 < figures["images/bytes_written"] <= budget


def test_the_budget_counts_what_is_there_and_is_shared_by_ranks(tmp_path):
    started(tmp_path, budget=60_000).on_rollout(Rollout(id="r", columns={"a": noise(0)}))
    assert through(started(tmp_path, budget=30_000), columns={"a": noise(1)}).columns["a"].note is not None
    shared_out = Images(budget=60_000)
    shared_out.on_run_start(Run(id="r", dir=str(tmp_path / "b"), world_size=4))
    assert through(shared_out, columns={"a": noise(2)}).columns["a"].note is not None


BROKEN = {
    "truncated PNG": encoded(1, size=(200, 200))[:300],
    "no image": b"hello",
    "empty": b"",
    "no such file": "/nowhere/x.png",
    "broken data URL": "data:image/png;base64,AAAA",
    "broken base64": "not base64!",
    "a device tensor": torch.zeros(3, 4, 4, device="meta"),
    "many images in one array": np.zeros((2, 3, 4, 4)),
    "not pixels": np.full((4, 4, 3), 7.5),
    "nan": np.full((4, 4, 3), np.nan),
    "objects": np.array([[object()] * 3] * 3),
    "zero pixels": Pil.new("RGB", (0, 5)),
    "an object that objects": Evil(),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_unreadable_image_costs_one_marked_placeholder(tmp_path, name):
    plugin = started(tmp_path)
    text = {"type": "text", "text": "beside it"}
    content = [{"type": "image", "image": BROKEN[name]}, text, {"type": "image", "image": picture(5)}]
    new = through(plugin, prompt=({"role": "user", "content": content},), columns={"answer": 4})
    first, second, third = new.prompt[0]["content"]
    if name != "an object that objects":
        assert isinstance(first["image"], Placeholder)
        assert first["image"].where == "prompt[0].content[0].image"
        assert first["image"].why
        assert plugin.rollout_metrics([new], Step())["images/unreadable"] == 1
    assert second is text
    assert third["image"].hash == HASH
    assert new.columns == {"answer": 4}


def test_bombs_are_never_decoded(tmp_path, monkeypatch):
    bomb = io.BytesIO()
    Pil.new("1", (3000, 2000)).save(bomb, "PNG")
    monkeypatch.setattr(Pil, "MAX_IMAGE_PIXELS", 1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("decoded"))
        new = through(
            started(tmp_path), prompt=({"role": "user", "content": [{"type": "image", "image": bomb.getvalue()}]},)
        )
    assert "larger than Pillow's limit" in new.prompt[0]["content"][0]["image"].why


def test_hashing_does_not_decode_an_image(tmp_path):
    path = tmp_path / "a.webp"
    path.write_bytes(encoded(5, "WEBP"))
    lazy = [Pil.open(io.BytesIO(PNG)), Pil.open(path)]
    new = through(started(tmp_path), columns={"a": lazy})
    assert all(isinstance(record, Image) for record in new.columns["a"])
    assert lazy[0].tile
    assert lazy[1]._im is None


def test_a_later_frame_that_is_not_decoded_is_not_another_picture(tmp_path):
    data = io.BytesIO()
    picture(1).save(data, "GIF", save_all=True, append_images=[picture(200)])
    image = Pil.open(data)
    image.seek(1)
    new = through(started(tmp_path), prompt=({"role": "user", "content": [image]},))
    assert "later frame" in new.prompt[0]["content"][0].why
    image.load()
    decoded = through(started(tmp_path), prompt=({"role": "user", "content": [image]},))
    assert decoded.prompt[0]["content"][0].hash == pixel_hash(image)


def test_a_disk_that_is_full_costs_the_pixels_and_is_tried_again(tmp_path, monkeypatch):
    plugin = started(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        record = through(plugin, columns={"a": picture(5)}).columns["a"]
    assert (record.hash, record.path, record.note) == (HASH, None, "not written: No space left on device")
    assert through(plugin, columns={"a": picture(5)}).columns["a"].path == f"media/{HASH}.png"


def test_without_a_run_folder_images_still_leave_the_messages():
    assert through(Images(), columns={"a": picture(5)}).columns["a"].path is None


def test_nothing_is_drawn_from_global_generators_and_no_picture_is_touched(tmp_path):
    import random

    image = picture(5)
    before = (dict(image.__dict__), random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    through(started(tmp_path), columns={"a": image})
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]
    assert torch.equal(torch.get_rng_state(), before[3])
    assert image.__dict__ == before[0]


@thorough
@given(rollout=rollouts())
def test_anything_survives(tmp_path, rollout):
    plugin = started(tmp_path)
    new = plugin.on_rollout(rollout) or rollout
    assert len(new.prompt) == len(rollout.prompt)
    assert len(new.completion) == len(rollout.completion)
    assert list(new.columns) == list(rollout.columns)


def test_deep_and_shared_values_end(tmp_path):
    new = through(started(tmp_path), columns={"deep": deep(), "shared": shared(60), "a": picture(5)})
    assert new.columns["a"].hash == HASH


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"mode": "kep"}, ["mode='kep'", "keep, thumbnail, strip"]),
        ({"max_side": 0}, ["max_side=0"]),
        ({"max_side": "64"}, ["max_side='64'"]),
        ({"format": "png"}, ["format='png'", "webp, jpeg"]),
        ({"quality": 101}, ["quality=101", "1 to 100"]),
        ({"budget": -1, "mode": None, "quality": True}, ["budget=-1", "mode=None", "quality=True"]),
    ],
)
def test_bad_options_give_one_error_that_names_them_all(options, named):
    with pytest.raises(SetupError) as error:
        Images(**options)
    assert all(text in str(error.value) for text in named)


@thorough
@given(rollout=rollouts())
def test_the_quick_check_overlooks_no_image(rollout):
    glanced = Images("strip").on_rollout(rollout)
    with patch.object(images, "_may_hold_images", return_value=True):
        looked = Images("strip").on_rollout(rollout)
    assert content_hash(glanced) == content_hash(looked)
