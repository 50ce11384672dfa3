"""Gallery: its page and pictures are those of the list in tools/gallery.py, and its commands are read."""

from __future__ import annotations

import shlex
import struct

from elbowroom.cli import parser_of_all
from tools.gallery import FOLDER, PAGE, PICTURES, WIDTH, page_text

MOST_BYTES = 100_000


def test_the_page_is_made_from_the_list() -> None:
    assert PAGE.read_text("utf-8") == page_text()


def test_each_picture_is_there_small_and_of_the_pages_width_and_no_other() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {picture.file for picture in PICTURES}
    for picture in PICTURES:
        content = (FOLDER / picture.file).read_bytes()
        assert len(content) < MOST_BYTES, picture.file
        if picture.part:
            width, height = struct.unpack(">II", content[16:24])  # of the PNG's header
            assert width == WIDTH
            assert 200 < height < 2000
        else:
            assert content.startswith(b"<svg")


def test_each_picture_says_whether_it_is_simulated_or_measured() -> None:
    assert all("simulated" in picture.says or "measured" in picture.says for picture in PICTURES)


def test_each_command_of_the_gallery_is_one_that_elbowroom_reads() -> None:
    for picture in PICTURES:
        for command in picture.commands:
            name, *words = shlex.split(command.partition(" -- ")[0])  # what follows is the script's own
            assert name == "elbowroom"
            assert parser_of_all().parse_args(words).execute
