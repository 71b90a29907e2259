from dips.report.stages import stages_table


def told(**entries):
    return {"data": "a < b", "scale": "few users", "items": "all count", "stages": entries}


def test_what_became_of_the_stages():
    page = stages_table(
        told(
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


def test_no_link_to_a_story_that_is_not_there():
    assert "href" not in stages_table(told(story={"state": "open", "seconds": 0, "why": ""}))
