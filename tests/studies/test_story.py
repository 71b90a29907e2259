"""Find a user in the data of a run: one table, or one for each part."""

import json
import shutil

import pytest

from dips import api
from dips.cli.main import main
from dips.data.prepared import write
from dips.data.synthetic import stream
from dips.errors import DataError
from dips.studies.story import user_story

FAST = ["--epochs", "1", "--dim", "6", "--batch-size", "256", "--device", "cpu", "--policy", "last"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Return a run with separate files for training, validation and test."""
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
def test_users_of_all_parts_are_found(parts, part):
    user = api.load(str(parts / f"{part}.safetensors")).user_id(0)
    story = user_story(parts / "run", user)
    assert (story.user, story.part) == (user, part)


def test_the_story_names_the_run_policy_and_the_kept_policy(parts, tmp_path):
    run = shutil.copytree(parts / "run", tmp_path / "run")
    settings = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(
        json.dumps({**settings, "asked": {**settings["asked"], "policy": "learned"}})
    )
    story = user_story(run, api.load(str(parts / "test.safetensors")).user_id(0))
    assert (story.policy, story.run_policy) == ("last", "learned")


def test_titles_are_matched_by_item_id(parts):
    other = stream(users=8, items=64, events=12, seed=5)
    story = user_story(parts / "run", other.user_id(3), other.select([3, 1]))
    place = other.item_ids.index
    assert story.titles
    assert story.titles == {item: other.titles[place[item]] for item in story.titles}


def test_the_message_about_an_unknown_user_names_test_users(parts):
    with pytest.raises(DataError, match="has no such user; for example, it has ") as caught:
        user_story(parts / "run", "nobody")
    first = str(caught.value).split("for example, it has ")[1].split(", ")[0]
    assert f"{first},test" in (parts / "run" / "split.csv").read_text().splitlines()


def test_a_user_outside_a_part_is_not_found_in_it(parts):
    other = api.load(str(parts / "test.safetensors"))
    some = other.select([0, 1])
    with pytest.raises(DataError, match="has no such user"):
        user_story(parts / "run", other.user_id(2), some)
