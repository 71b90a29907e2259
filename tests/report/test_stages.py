"""The table of the stages of `dips paper`."""

from dips.report.stages import stages_table


def document(**entries):
    return {"data": "a < b", "scale": "few users", "items": "all count", "stages": entries}


def test_states_times_and_reasons_are_shown():
    page = stages_table(
        document(
            compare={"state": "done", "seconds": 61.0, "why": ""},
            session={"state": "skipped", "seconds": 0.0, "why": "too <short>"},
            story={"state": "done", "seconds": 0.5, "why": ""},
        )
    )
    assert "61.0 s" in page
    assert "too &lt;short&gt;" in page
    assert '<a href="story.html">' in page
    assert "a &lt; b" in page
    assert "Few users. Where items are predicted: all count." in page


def test_different_scales_have_a_column():
    done = {"state": "done", "seconds": 1.0, "why": ""}
    page = stages_table(
        document(compare={**done, "scale": "100 users"}, session={**done, "scale": "50 users"})
    )
    assert "Few users" not in page
    assert "<td>100 users</td>" in page
    assert "<td>50 users</td>" in page
    same = stages_table(document(compare={**done, "scale": "50 users"}))
    assert "50 users. Where" in same
    assert "<td>50 users</td>" not in same


def test_a_stage_that_did_not_run_has_no_time():
    assert "0.0 s" not in stages_table(
        document(story={"state": "skipped", "seconds": 0.0, "why": ""})
    )


def test_no_link_to_a_story_that_is_not_there():
    assert "href" not in stages_table(document(story={"state": "open", "seconds": 0, "why": ""}))
