"""The page of `fulcrum serve` in a real browser: everything follows, nothing is logged, nothing else is asked for."""

import time

import pytest
from browsers import slowness, with_even_letters
from page_browser import REFUSED, after, chosen, drawn, drop, figures, rested, slide

import fulcrum
from fulcrum.cli import command_line as cli
from fulcrum.readers.federation_reader import read_federation

pytest.importorskip("uvicorn", reason="the page needs uvicorn")
pytest.importorskip("starlette", reason="the page needs starlette")
pytest.importorskip("vl_convert", reason="the page needs vl-convert-python")

ATTACK = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"


def many(silos, regions):
    rows = (f"silo-{k},{50 + 37 * k % 3000},region-{int(regions * (k / silos) ** 1.5)}" for k in range(silos))
    return ("silo,records,region\n" + "\n".join(rows)).encode()


def test_the_page_opens_with_the_claim_and_all_charts(opened, visit, address):
    page = opened()
    assert page.title() == "consortium: what if"
    assert (
        page.locator(".claim").inner_text().startswith("Over 10 rounds, at delta 1e-05, every silo's whole dataset has")
    )
    assert figures(page) == ["1", "6.873", "88.0%", "88.0%"]
    page.wait_for_selector("html[data-rested]")
    assert page.locator("figure.drawn .live svg").count() == 6
    assert page.locator("#count").inner_text() == "50 of 50 silos"
    for part in (".claim", "#headline", ".warning"):
        box = with_even_letters(page).locator(part).bounding_box()
        assert box["y"] + box["height"] < 800  # on the first screen
    assert set(visit.requests) == {address + path for path in ("", "style.css", "vega.js", "page.js", "plan", "later")}
    assert page.context.cookies() == []


def test_figures_charts_and_table_follow_a_slider(opened):
    page = opened()
    before = {chart: drawn(page, chart) for chart in ("tree", "epsilon", "trade", "information")}
    slide(page, "epsilon", 700)
    assert page.locator("#epsilon").input_value() == "3.3"
    made = fulcrum.plan("consortium", rounds=10, epsilon=3.3)
    assert figures(page)[0] == "3.3"
    assert float(figures(page)[1]) == pytest.approx(made.worst_epsilon("silo"), rel=1e-3)
    assert "epsilon 3.3 against" in page.locator(".claim").inner_text()
    for chart, picture in before.items():
        assert drawn(page, chart) != picture
    noise = page.locator("#rows tbody tr:not(.gap) td:nth-child(6)").first.inner_text()
    assert float(noise) == pytest.approx(made.noise_multiplier[0], rel=1e-5)


def test_a_slider_is_moved_by_keys_and_its_number_typed(opened):
    page = opened()
    page.locator("#rounds-slider").focus()
    after(page, lambda: page.keyboard.press("ArrowRight"))
    after(page, lambda: (page.locator("#rounds").fill("25"), page.keyboard.press("Tab")))
    assert "Over 25 rounds" in page.locator(".claim").inner_text()
    after(page, lambda: page.locator("#inside-on").check())
    assert figures(page)[1] == "2"
    after(page, lambda: page.locator("#accountant").select_option("renyi"))
    slide(page, "colluders", 2)
    assert "even if up to 2 silos" in page.locator(".claim").inner_text()


def test_what_cannot_be_is_told_where_it_was_asked_and_the_last_answer_stays(opened, visit):
    page = opened()
    before = figures(page)
    page.locator("#delta").fill("2")
    page.keyboard.press("Tab")
    page.locator("#delta-error:not(:empty)").wait_for()
    assert page.locator("#delta-error").inner_text() == "delta must be in (0, 1), got 2.0"
    assert visit.messages == [REFUSED]
    page.locator("#delta").fill("much")
    page.keyboard.press("Tab")
    page.get_by_text("this must be a number, got 'much'").wait_for()
    assert figures(page) == before
    after(page, lambda: (page.locator("#delta").fill("1e-6"), page.keyboard.press("Tab")))
    assert page.locator(".error:not(:empty)").count() == 0
    visit.messages.clear()


def test_numbers_are_read_as_they_are_written(opened, visit):
    page = opened()
    after(page, lambda: (page.locator("#rounds").fill("1,000"), page.keyboard.press("Tab")))
    assert "Over 1000 rounds" in page.locator(".claim").inner_text()
    after(page, lambda: (page.locator("#epsilon").fill("2,5"), page.keyboard.press("Tab")))
    assert figures(page)[0] == "2.5"
    after(page, lambda: (page.locator("#epsilon").fill("0,125"), page.keyboard.press("Tab")))
    assert figures(page)[0] == "0.125"
    records = page.get_by_label("Mean records of country-3")
    rested(page, lambda: (records.fill("1,200"), page.keyboard.press("Tab")))
    assert records.input_value() == "1200"
    asked = len(visit.requests)
    for written in ("Infinity", "1e999", "12,34,5", "many"):
        records.fill(written)
        page.keyboard.press("Tab")
        page.get_by_text(f"country-3: this must be a number, got '{written}'").wait_for()
        assert records.input_value() == "1200"
    page.locator("#epsilon").fill("Infinity")
    page.keyboard.press("Tab")
    page.get_by_text("this must be a number, got 'Infinity'").wait_for()
    assert len(visit.requests) == asked


def test_those_who_listen_are_told_the_answer_once_it_rests(opened):
    page = opened()
    told = page.locator("#told")
    page.get_by_text("worst epsilon 1 above, 6.873 inside, saving 88.0%").wait_for(state="attached")
    slide(page, "epsilon", 700)
    assert told.inner_text() == "worst epsilon 1 above, 6.873 inside, saving 88.0%"
    page.get_by_text("worst epsilon 3.3 above, ").wait_for(state="attached")
    assert told.get_attribute("role") == "status"
    assert told.bounding_box()["width"] <= 1


def test_a_narrow_window_shows_whole_legends_and_the_tree_stacked(opened):
    page = opened()
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    page.wait_for_selector("html[data-answers]")
    legend = page.locator('figure[data-chart="epsilon"] .live .role-legend-label text').all_text_contents()
    assert legend == ["above the region", "inside the region"]
    assert page.locator("#regions").evaluate("(box) => getComputedStyle(box).maxHeight") == "none"
    tree = page.locator('figure[data-chart="tree"]')
    assert "wider" not in tree.get_attribute("class")
    live = tree.locator(".live")
    assert live.evaluate("(live) => live.scrollWidth <= live.clientWidth")
    assert live.locator("text").all_text_contents().count("country-6") == 1


def test_a_bad_file_is_told_in_one_line_and_a_good_one_taken(opened, visit):
    page = opened()
    before = figures(page)
    chosen(page, "hospitals.csv", b"silo,records,region\nlille,1200,north\nlyon,-3,south\n")
    page.locator("#file-error:not(:empty)").wait_for()
    assert page.locator("#file-error").inner_text() == "hospitals.csv line 3: records=-3 must be at least 1"
    assert figures(page) == before
    assert visit.messages == [REFUSED]
    visit.messages.clear()
    after(page, lambda: chosen(page, "hospitals.csv", b"silo,records,region\nlille,1200,north\nlyon,3,south\n"))
    assert page.locator("#file-error").inner_text() == ""
    assert page.locator("h1").inner_text() == "hospitals"
    assert page.locator("#count").inner_text() == "2 of 2 silos"


def test_a_file_is_dropped_on_the_page(opened):
    page = opened()
    after(page, lambda: drop(page, "dropped.csv", r"'silo,records,region\na,1,r\nb,2,s'"))
    assert page.locator("h1").inner_text() == "dropped"


def test_a_file_that_is_too_large_is_not_even_sent(opened, visit):
    page = opened()
    page.wait_for_selector("html[data-rested]")
    before = len(visit.requests)
    drop(page, "big.csv", "new Uint8Array(16_000_001)")
    page.locator("#file-error:not(:empty)").wait_for()
    assert page.locator("#file-error").inner_text().startswith("big.csv is larger than the 16 MB")
    assert len(visit.requests) == before


def test_merging_regions_changes_the_saving_and_can_be_undone(opened):
    page = opened()
    assert page.locator("#merge").is_disabled()
    page.get_by_label("Choose country-1").check()
    page.get_by_label("Choose country-5").check()
    after(page, lambda: page.get_by_role("button", name="Merge the chosen").click())
    sizes = {"a": [200] * 31, "b": [200] * 10, "c": [200] * 5, "d": [200] * 3, "e": [200]}
    saving = f"{100 * fulcrum.plan(fulcrum.Federation.from_sizes(sizes), rounds=10, epsilon=1.0).saving:.1f}%"
    assert figures(page)[2] == saving != "88.0%"
    assert f"Saving 88.0% → {saving}" in page.locator("#edited").inner_text()
    assert page.locator(".regions tbody tr").count() == 5
    after(page, lambda: page.get_by_role("button", name="Undo").click())
    assert figures(page)[2] == "88.0%"
    assert page.locator(".regions tbody tr").count() == 6
    assert page.locator("#undo").is_disabled()


def test_chosen_regions_replace_the_regions_of_today_and_can_be_undone(opened):
    page = opened()
    page.get_by_label("of at most").fill("25")
    after(page, lambda: page.get_by_role("button", name="Choose regions").click())
    assert "Chose the regions." in page.locator("#edited").inner_text()
    assert page.locator(".regions tbody tr").count() == 2
    after(page, lambda: page.get_by_role("button", name="Undo").click())
    assert page.locator(".regions tbody tr").count() == 6
    page.get_by_label("of at most").fill("many")
    page.get_by_role("button", name="Choose regions").click()
    assert "whole number" in page.locator("#edit-error").inner_text()


def test_regions_are_edited_in_their_table(opened, visit):
    page = opened()
    after(page, lambda: (page.get_by_label("Silos of country-6").fill("12"), page.keyboard.press("Tab")))
    assert page.locator("#count").inner_text() == "61 of 61 silos"
    after(page, lambda: page.get_by_role("button", name="Split country-1").click())
    after(page, lambda: page.get_by_role("button", name="Remove country-2").click())
    after(page, lambda: page.get_by_role("button", name="Add a region").click())
    after(page, lambda: (page.get_by_label("Mean records of country-3").fill("800"), page.keyboard.press("Tab")))
    after(page, lambda: (page.get_by_label("Name of country-3").fill("alps"), page.keyboard.press("Tab")))
    assert page.locator("tr[data-region=alps] td.total").inner_text() == "4,000"
    assert page.locator(".regions tbody tr").count() == 7
    page.get_by_label("Silos of alps").fill("0")
    page.keyboard.press("Tab")
    page.locator("#edit-error:not(:empty)").wait_for()
    assert "silos=0 must be at least 1" in page.locator("#edit-error").inner_text()
    assert page.get_by_label("Silos of alps").input_value() == "5"
    assert visit.messages == [REFUSED]
    visit.messages.clear()


def test_the_plan_is_downloaded_and_read(opened, tmp_path, capsys):
    page = opened()
    slide(page, "epsilon", 700)
    page.get_by_label("Choose country-1").check()
    page.get_by_label("Choose country-2").check()
    after(page, lambda: page.get_by_role("button", name="Merge the chosen").click())
    for button, name in {
        "Plan": "plan.json",
        "CSV": "plan.csv",
        "Report": "report.html",
        "Federation": "federation.csv",
    }.items():
        with page.expect_download() as download:
            page.get_by_role("button", name=button, exact=True).click()
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
    made = fulcrum.read_plan(tmp_path / "plan.json")
    assert made.epsilon_target == {"region": 3.3}
    assert made.federation.innermost.nodes[0] == "country-1 + country-2"
    assert cli.run(["verify", str(tmp_path / "plan.json")]) == 0
    assert "Every check holds" in capsys.readouterr().out
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "plan.csv").read_text().startswith("silo,records,region")
    assert read_federation(str(tmp_path / "federation.csv")).digest == made.federation.digest


def test_names_with_scripts_in_them_are_shown_and_not_run(opened):
    page = opened()
    quoted = ATTACK.replace('"', '""')
    rows = f'silo,records,region\n"{quoted}",3,"{quoted}r"\nb,2,s\n'
    after(page, lambda: chosen(page, f"{ATTACK[:20].replace('/', '')}.csv", rows.encode()))
    assert page.locator("img").count() == 0
    assert page.locator("#rows td").first.inner_text() == ATTACK
    assert page.get_by_label(f"Name of {ATTACK}r").input_value() == f"{ATTACK}r"
    page.get_by_label(f"Choose {ATTACK}r").check()
    page.get_by_label("Choose s", exact=True).check()
    after(page, lambda: page.get_by_role("button", name="Merge the chosen").click())
    assert page.title() != "taken"


def test_colours_follow_the_system_and_the_reader(opened):
    page = opened(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(21, 24, 28)"
    page.get_by_role("button", name="Use light colours").click()
    page.wait_for_selector("html[data-drawn=light]")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert page.locator('.live [fill="#5cb8f2"]').count() == 0


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_window_does_not_scroll_sideways(width, opened):
    page = opened()
    page.set_viewport_size({"width": width, "height": 844})
    page.reload()
    page.wait_for_selector("html[data-answers]")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cut = "(names) => names.filter((name) => name.scrollHeight > name.clientHeight + 1).map((name) => name.textContent)"
    assert page.locator(".headline dt").evaluate_all(cut) == []


def test_everything_has_a_name(opened):
    page = opened()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button")].filter((element) =>
             !element.labels?.length && !element.getAttribute("aria-label") && !element.textContent.trim()
           ).map((element) => element.outerHTML)"""
    )
    assert unnamed == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(ids) == len(set(ids))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_order_and_search_of_the_table_stay_while_a_slider_moves(opened):
    page = opened()
    page.get_by_role("button", name="ε inside").click()
    page.get_by_label("Search").fill("country-4")
    slide(page, "epsilon", 650)
    assert page.locator("#count").inner_text() == "3 of 50 silos"
    assert page.locator("th[aria-sort=ascending]").inner_text() == "ε inside"


# From the slider's event until everything is drawn, best of some: the machine may be slow, or busy with something else.
@pytest.mark.parametrize("weights", ["", "least-noise", "between"])
@pytest.mark.parametrize(("silos", "limit"), [(1_000, 100), (10_000, 300)])
def test_the_page_follows_a_slider_without_delay(silos, limit, weights, opened):
    page = opened()
    after(page, lambda: chosen(page, "many.csv", many(silos, 20)))
    if weights:
        after(page, lambda: page.locator("#weights").select_option(weights))
    assert page.locator("#count").inner_text() == f"{silos:,} of {silos:,} silos"
    took = []
    deadline = time.monotonic() + 30
    while len(took) < 6 or (min(took) >= limit and time.monotonic() < deadline):
        milliseconds = page.evaluate(
            """async (from) => {
              const root = document.documentElement;
              const slider = document.getElementById("rounds-slider");
              const took = [];
              for (let step = 0; step < 6; step += 1) {
                const start = performance.now();
                await new Promise((done) => {
                  const seen = new MutationObserver(() => { seen.disconnect(); done(); });
                  seen.observe(root, { attributeFilter: ["data-answers"] });
                  slider.value = from + 15 * step;
                  slider.dispatchEvent(new Event("input", { bubbles: true }));
                });
                took.push(performance.now() - start);
              }
              return took;
            }""",
            300 + len(took),
        )
        slower = slowness(page)
        took += [each / slower for each in milliseconds]
    assert min(took) < limit, took
