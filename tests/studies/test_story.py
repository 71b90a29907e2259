"""Finding a user of a run, in one table or in three."""

import json
import shutil

import pytest

from dips import api
from dips.cli.main import main
from dips.data.prepared import write
from dips.data.synthetic import stream
from dips.errors import DataError
from dips.studies.story import story_of

FAST = ["--epochs", "1", "--dim", "6", "--batch", "256", "--device", "cpu", "--policy", "last"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A run of three files of its own."""
    folder = tmp_path_factory.mktemp("parts")
    whole = stream(users=30, items=64, events=12)
    names = []
    for name, part in zip(("train", "valid", "test"), whole.split_users(seed=0), strict=True):
        write(part, folder / f"{name}.safetensors")
        names.append(str(folder / f"{name}.safetensors"))
    train, valid, test = names
    with pytest.raises(SystemExit) as left:
        main(["train", train, "--valid-data", valid, "--test-data", test, "--out",
              str(folder / "run"), *FAST])  # fmt: skip
    assert left.value.code == 0
    return folder


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_a_user_of_each_file_is_found(parts, part):
    user = api.load(str(parts / f"{part}.safetensors")).user_id(0)
    story = story_of(parts / "run", user)
    assert (story.user, story.part) == (user, part)


def test_the_policy_that_the_run_is_of_is_known_beside_the_one_that_chose(parts, tmp_path):
    run = shutil.copytree(parts / "run", tmp_path / "run")
    settings = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**settings, "policy": "learned"}))
    story = story_of(run, api.load(str(parts / "test.safetensors")).user_id(0))
    assert (story.policy, story.of) == ("last", "learned")


def test_titles_follow_ids_where_other_data_numbers_items_otherwise(parts):
    other = stream(users=8, items=64, events=12, seed=5)
    story = story_of(parts / "run", other.user_id(3), other.select([3, 1]))
    place = other.item_ids.index
    assert story.titles
    assert story.titles == {item: other.titles[place[item]] for item in story.titles}


def test_a_stranger_is_told_of_test_users_first(parts):
    with pytest.raises(DataError, match="has no such user; try, for example, ") as caught:
        story_of(parts / "run", "nobody")
    first = str(caught.value).split("for example, ")[1].split(", ")[0]
    assert f"{first},test" in (parts / "run" / "split.csv").read_text().splitlines()


def test_a_user_who_is_left_out_of_a_part_is_not_in_it(parts):
    other = api.load(str(parts / "test.safetensors"))
    some = other.select([0, 1])
    with pytest.raises(DataError, match="has no such user"):
        story_of(parts / "run", other.user_id(2), some)
