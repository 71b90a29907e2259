"""The report: its content, and its behaviour in Chromium."""

import csv
import json
import re
from html import unescape as html_unescape

import pytest

from dips.report.cards import metrics_of, reference_policy
from dips.report.report_page import report_page
from dips.report.results import read_results
from tests.report.fixtures import (
    overflow,
    write_comparison,
    write_experiment,
    write_gradients,
    write_run,
    write_table,
)


def render(*places):
    return report_page(
        read_results(places),
        bytes_of=lambda size, every, rated: 100 * size + every + rated,
        version="9.9",
    )


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_comparison(folder / "compare")
    write_experiment(folder / "transfer", "transfer")
    write_experiment(folder / "session", "session")
    write_run(folder / "run")
    write_gradients(folder / "run")
    return render(*(folder / name for name in ("compare", "transfer", "session", "run")))


@pytest.fixture(scope="module")
def path(html, tmp_path_factory):
    place = tmp_path_factory.mktemp("page") / "report.html"
    place.write_text(html, encoding="utf-8")
    return place


def test_all_results_are_shown(html):
    headings = re.findall(r"<h2>(.*?)</h2>", html)
    assert headings == [
        "Policies on ml-1m", "Policy transfer: toy", "Sessions with a sketch: toy",
        "Policy gradients", "Training", "Timings", "Settings", "Commands and environment",
    ]  # fmt: skip
    for text in (
        "Results of 1 comparison, 2 experiments and 1 single run.",
        "learned at 4 equals last at 5.66",
        "paper's DiPS 0.9418",
        "bytes of a user&#x27;s record",
        "up to 50 % fewer sketch items",
        "more than 20 %",
        "recall@20: learned at 2 equals reservoir at 2.8",
        "recall@20: last at 2 is +25.0% on no sketch",
        "no sketch",
        "1,234",
        "75.0 s",
        "512 MB",
        "0.9234",  # a single run's score on test
        "dips transfer toy",
        "2.13",
        "Made by dips 9.9",
    ):
        assert text in html, text


def test_it_loads_nothing_runs_nothing_and_escapes_everything(html):
    assert "<script" not in html
    assert "&lt;script&gt;document" in html  # a command that was typed
    assert "script-src 'none'" in html
    assert not re.search(r"(?:src|href)=[\"'](?!#|data:)", html)
    assert "http" not in re.sub(r"http-equiv", "", html)


def test_anchors_lead_somewhere(html):
    wanted = set(re.findall(r'href="#([^"]+)"', html))
    assert wanted <= set(re.findall(r'id="([^"]+)"', html))
    assert len(wanted) == 8 + 1


def test_a_single_run_is_enough(tmp_path):
    html = render(write_run(tmp_path / "run"))
    assert "Results of 1 single run." in html
    assert "No command was recorded" in html
    assert "cards" not in html.split("</style>")[1]


def cards_of(place):
    return html_unescape(render(place).split('<ul class="cards">')[1].split("</ul>")[0])


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_cards_name_the_kept_policy(tmp_path):
    place = write_comparison(tmp_path / "compare")
    assert "chosen by" not in cards_of(place)  # what older results do not say
    with (place / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    write_table(place / "rows.csv", [{**row, "kept_policy": "frequent"} for row in rows])
    assert "<b>learned (chosen by frequent)</b>" in cards_of(place)
    assert "<b>learned at 4 equals last at 5.66 (chosen by frequent)</b>" in cards_of(place)


def test_the_best_rule_is_a_reference_and_its_choices_are_shown(html):
    assert "Difference to best-rule, refreshed at every interaction" in html
    assert "best-rule: the static policy that is best on validation in each fold" in html
    assert "-0.0079, -0.0121" in html


def test_cards_say_what_is_not_significant(tmp_path):
    place = write_comparison(tmp_path / "compare")
    assert "significant" not in cards_of(place)
    change(place / "paired.csv", "-0.005", "0.005")
    assert "not significant against last" in cards_of(place)
    assert "the difference is not significant" in cards_of(place)


def with_means(place, **means):
    """Give policies other means, by size."""
    with (place / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    write_table(
        place / "summary.csv",
        [
            {**row, "mean": means.get(row["policy"], {}).get(int(row["size"]), row["mean"])}
            for row in rows
        ],
    )
    return place


def test_no_policy_wins_on_one_card_and_loses_on_another(tmp_path):
    place = write_comparison(tmp_path / "noise")
    with_means(place, last={2: 0.90, 4: 0.94, 8: 0.95})  # fewer are better
    cards = cards_of(place)
    assert "<b>learned</b>" in cards  # best at K = 4
    assert "better than learned" not in cards
    assert "learned at 4 equals last" not in cards

    behind = with_means(write_comparison(tmp_path / "behind"), learned={2: 0.97, 4: 0.95, 8: 0.93})
    cards = cards_of(behind)
    assert "<b>last</b>" in cards
    assert "<b>learned is 1.1 % behind last</b><span>by rmse on ml-1m at K = 4</span>" in cards
    assert "<b>learned at 4 equals last at 2.83</b>" in cards


def test_cards_of_one_comparison_are_about_a_size_that_policies_share(tmp_path):
    place = write_comparison(tmp_path / "compare")
    with (place / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    kept = [r for r in rows if r["policy"] == "last" or r["size"] in ("2", "8")]
    kept = [r for r in kept if r["policy"] != "learned" or r["size"] == "2"]
    write_table(place / "summary.csv", kept)
    cards = cards_of(place)
    assert "at K = 2:" in cards
    assert "learned at 2 equals last at 2.83" in cards


@pytest.mark.parametrize(("users", "said"), [(300, True), (6040, False)])
def test_a_small_run_beside_the_paper_s_full_data_says_so(tmp_path, users, said):
    place = write_comparison(tmp_path / "compare")
    for file in place.glob("runs/*/metrics.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "users": users}))
    sentence = "300 users, the paper has 6,000"
    assert (sentence in cards_of(place)) == said
    assert (f"Here are {sentence}: the difference says little" in render(place)) == said


def test_the_primary_metric_comes_first():
    rows = [{"metric": name} for name in ("mrr@20", "recall@20", "ndcg@20")]
    assert metrics_of(rows) == ["recall@20", "mrr@20"]


def test_policies_are_compared_with_learned_or_the_best():
    def row(policy, mean):
        return {"policy": policy, "size": 4, "every": 1, "metric": "rmse", "mean": mean}

    assert reference_policy([row("last", 0.9), row("learned", 1.0)], "rmse") == "learned"
    assert reference_policy([row("last", 0.9), row("reservoir", 0.8)], "rmse") == "reservoir"
    assert reference_policy([row("last", 0.9), row("all", 0.1)], "rmse") == "last"


def test_two_comparisons_of_the_same_data_have_different_titles(tmp_path):
    html = render(write_comparison(tmp_path / "one"), write_comparison(tmp_path / "two"))
    assert "Policies on ml-1m (one)" in html
    assert "Policies on ml-1m (two)" in html


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "light"), (390, "dark")])
def test_it_does_not_scroll_horizontally(look, path, width, scheme):
    view = look(path, width=width, scheme=scheme)
    assert view.get_by_role("heading", level=1).inner_text() == "Which interactions to keep"
    assert overflow(view) == 0
    view.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert overflow(view) == 0
    paper = view.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(251, 250, 247)") == (scheme == "light")


def test_charts_are_drawn_and_have_names(look, path):
    view = look(path)
    charts = view.get_by_role("img").all()
    assert len(charts) >= 9
    for chart in charts:
        assert chart.get_attribute("aria-label")
        box = chart.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 60
    figure = view.locator("figure", has=view.get_by_text("Quality by sketch size, every 1"))
    line = figure.locator("polyline").first
    assert line.bounding_box()["width"] > 200
    assert line.evaluate("e => getComputedStyle(e).stroke") == "rgb(31, 95, 139)"


def test_tables_and_figures_can_be_reached_by_keyboard(look, path):
    view = look(path)
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.textContent") == "Skip to the content"
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.getAttribute('href')") == "#compare-0"
    view.keyboard.press("Enter")
    view.wait_for_url("**#compare-0")
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.getAttribute('role')") == "region"
    summary = view.get_by_text("The numbers").first
    summary.focus()
    view.keyboard.press("Enter")
    assert summary.locator("..").get_attribute("open") is not None
