"""Images that differ in any way stay apart, and are kept as they are."""

from __future__ import annotations

import base64
import io

import pytest
from hostile import picture
from image_rig import PNG, noise, saved, started, through, turned
from loops import recorder_in, row
from PIL import Image as Pil
from PIL.PngImagePlugin import PngInfo

from rollout_plugins import open_run
from rollout_plugins.content.hashing import pixel_hash

KEY = "sk-" + "a1B2" * 8


def frames(kind, *later):
    first, *rest = [picture(number).convert("P" if kind == "GIF" else "RGB") for number in (1, *later)]
    return saved(first, kind, save_all=True, append_images=rest, **({"lossless": True} if kind == "WEBP" else {}))


def profiled(profile):
    return saved(picture(5), "PNG", icc_profile=profile)


def png16(low):
    """A PNG with 16 bits to a colour, of which Pillow shows the upper 8."""
    import struct
    import zlib

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = b"".join(b"\0" + bytes([7, low] * 3 * 6) for _ in range(4))
    head = struct.pack(">IIBBBBB", 6, 4, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def painted(mode, numbers, palette):
    image = Pil.new(mode, (2, 1))
    image.putpalette(palette)
    image.putdata(numbers)
    return image


def gamma(value):
    info = PngInfo()
    info.add(b"gAMA", value.to_bytes(4, "big"))
    return saved(picture(5), "PNG", pnginfo=info)


APART = {
    "GIFs with one first frame": [frames("GIF", 100), frames("GIF", 200), frames("GIF")],
    "WebPs with one first frame": [frames("WEBP", 100), frames("WEBP", 200), frames("WEBP")],
    "PNGs with one first frame": [frames("PNG", 100), frames("PNG", 200), frames("PNG")],
    "TIFFs with one first frame": [frames("TIFF", 100), frames("TIFF", 200)],
    "orientations of a JPEG": [turned(1), turned(6), turned(3)],
    "orientations of a PNG": [turned(1, "PNG"), turned(6, "PNG"), turned(3, "PNG")],
    "colour profiles": [profiled(b"one profile"), profiled(b"another one"), PNG],
    "gammas": [gamma(45455), gamma(100000), PNG],
    "16 bits to a colour": [png16(0), png16(200)],
    "transparent colours": [saved(picture(5), "PNG", transparency=(1, 2, 3)), PNG],
}


@pytest.mark.parametrize("name", APART)
def test_images_that_differ_in_any_way_stay_apart_and_are_kept_as_they_are(tmp_path, name):
    new = through(started(tmp_path), columns={"images": APART[name]})
    assert len({record.hash for record in new.images}) == len(APART[name])
    assert [(tmp_path / record.path).read_bytes() for record in new.images] == APART[name]
    assert [record.note for record in new.images] == [None] * len(APART[name])


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        *((kind, "in memory") for kind in ("GIF", "PNG", "TIFF")),
        *((kind, "on disk") for kind in ("GIF", "PNG", "TIFF", "WEBP")),
    ],
)
def test_a_decoded_image_is_kept_with_its_files_other_frames(tmp_path, kind, where):
    files = [frames(kind, 100), frames(kind, 200)]
    opened = []
    for number, data in enumerate(files):
        path = tmp_path / f"{number}.{kind.lower()}"
        path.write_bytes(data)
        opened.append(Pil.open(io.BytesIO(data) if where == "in memory" else path))
        opened[-1].load()
    places = [image.tell() for image in opened]
    new = through(started(tmp_path), columns={"images": opened})
    assert [(tmp_path / record.path).read_bytes() for record in new.images] == files
    assert [image.tell() for image in opened] == places


def test_a_frame_of_a_file_with_several_has_a_note(tmp_path):
    given = [
        Pil.open(io.BytesIO(frames(kind, *rest)))
        for kind, rest in (("GIF", [100]), ("GIF", [100]), ("WEBP", [100]), ("GIF", []))
    ]
    given[1].seek(1)
    for image in given:
        image.load()
    given[0].putpixel((0, 0), 3)
    new = through(started(tmp_path), columns={"images": given})
    assert [record.note for record in new.images] == [*["one of several frames"] * 3, None]
    small = through(started(tmp_path / "small", "thumbnail"), columns={"images": [frames("GIF", 100), png16(1)]})
    assert [record.note for record in small.images] == [
        "thumbnail; the first of several frames",
        "thumbnail; colours of more than 8 bits read as 8",
    ]


def test_decoded_images_keep_their_orientation_and_colour_profile(tmp_path):
    given = [Pil.open(io.BytesIO(data)) for data in (turned(6), turned(3), profiled(b"one"), profiled(b"two"))]
    for image in given:
        image.load()
    new = through(started(tmp_path), columns={"images": given})
    stored = [Pil.open(tmp_path / record.path) for record in new.images]
    for image in stored:
        image.load()
    assert len({record.hash for record in new.images}) == 4
    assert [image.getexif().get(0x0112) for image in stored[:2]] == [6, 3]
    assert [image.info["icc_profile"] for image in stored[2:]] == [b"one", b"two"]


@pytest.mark.parametrize("mode", ["P", "PA"])
def test_labels_and_colours_of_a_palette_both_count(tmp_path, mode):
    black, red = [0] * 6, [200, 0, 0, 9, 9, 9]
    numbers = ([0, 1], [1, 0]) if mode == "P" else ([(0, 255), (1, 255)], [(1, 255), (0, 255)])
    given = [painted(mode, some, palette) for some in numbers for palette in (black, red)]
    assert len({pixel_hash(image) for image in given}) == 4


@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: "data:image/png;base64," + text])
@pytest.mark.parametrize(
    "spell",
    [
        lambda data: base64.encodebytes(data).decode(),
        lambda data: base64.encodebytes(data).decode().replace("\n", "\r\n"),
        lambda data: base64.urlsafe_b64encode(data).decode(),
        lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="),
        lambda data: base64.b64encode(data).decode().rstrip("="),
    ],
)
def test_base64_counts_in_every_way_it_is_written(tmp_path, spell, wrap):
    data = saved(noise(1), "PNG")
    new = through(
        started(tmp_path), prompt=({"role": "user", "content": [{"type": "image", "image": wrap(spell(data))}]},)
    )
    (record,) = new.images
    assert (tmp_path / record.path).read_bytes() == data


def worded(kind, words, orientation=6):
    """A picture whose file says something beside it, in each way that its format has."""
    exif = Pil.Exif()
    exif[0x010E], exif[0x0112] = words, orientation
    text = PngInfo()
    text.add_text("Comment", words)
    text.add_itxt("Author", words, zip=True)
    beside = {
        "JPEG": {"exif": exif.tobytes(), "comment": words, "xmp": words.encode()},
        "PNG": {"exif": exif.tobytes(), "pnginfo": text},
        "WEBP": {"exif": exif.tobytes(), "xmp": words.encode(), "lossless": True},
        "GIF": {"comment": words},
        "TIFF": {"exif": exif, "description": words},
    }
    return saved(picture(5).convert("P" if kind == "GIF" else "RGB"), kind, **beside[kind])


@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("options", [{}, {"max_side": 4}, {"mode": "thumbnail", "format": "jpeg"}])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
@pytest.mark.needs(part="redact")
def test_with_redact_no_image_file_keeps_its_metadata(tmp_path, kind, options, is_opened):
    file = worded(kind, KEY)
    opened = Pil.open(io.BytesIO(file))
    opened.load()
    with recorder_in(tmp_path, "redact", config={"images": options}) as recorder:
        recorder.record(1, [row(columns={"image": opened if is_opened else file})])
    run = open_run(tmp_path / "runs")
    (image,) = next(iter(run.rollouts())).images
    stored = (run.dir / image.path).read_bytes()
    assert KEY.encode() not in stored
    back = Pil.open(io.BytesIO(stored))
    back.load()
    said = [back.info, dict(back.getexif()), getattr(back, "text", ""), getattr(back, "applist", "")]
    assert KEY not in repr(said)
    if not options:
        assert back.convert("RGB").tobytes() == opened.convert("RGB").tobytes()
        assert back.getexif().get(0x0112) == opened.getexif().get(0x0112)
    assert run.health.drops == {}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
@pytest.mark.needs(part="redact")
def test_with_redact_a_file_without_metadata_is_kept_unmodified(tmp_path, kind):
    silent = saved(picture(5).convert("P" if kind == "GIF" else "RGB"), kind)
    several = frames("GIF", 100)
    with recorder_in(tmp_path, "redact") as recorder:
        recorder.record(1, [row("one", columns={"image": silent}), row("several", columns={"image": several})])
    run = open_run(tmp_path / "runs")
    assert [(run.dir / rollout.images[0].path).read_bytes() for rollout in run.rollouts()] == [silent, several]
    assert [rollout.images[0].note for rollout in run.rollouts()] == [None, None]
