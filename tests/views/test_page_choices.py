"""The page in a browser: weights and who pays for them, verdicts, advice that is a button, regions in countries."""

import numpy as np
import pytest
from browsers import with_even_letters
from page_browser import REFUSED, after, chosen, drawn, figures, rested, slide

import fulcrum
from fulcrum.planning.content.region_merges import best_merge
from fulcrum.readers.federation_reader import reading_of_bytes

pytest.importorskip("uvicorn", reason="the page needs uvicorn")
pytest.importorskip("starlette", reason="the page needs starlette")
pytest.importorskip("vl_convert", reason="the page needs vl-convert-python")

CLINICS = """silo,records,region,country
aachen,2631,NRW,Deutschland
innsbruck,640,Tirol,Österreich
bonn,1850,NRW,Deutschland
rostock,300,Nordost,Deutschland
koeln,900,NRW,Deutschland
hall,210,Tirol,Österreich
essen,700,NRW,Deutschland
wien,2400,Ost,Österreich
""".encode()

SHARES = np.array([6081, 850, 300, 2400]) / 9631  # of the regions, by size


@pytest.fixture
def clinics(opened):
    page = opened()
    after(page, lambda: chosen(page, "clinics.csv", CLINICS))
    return page


def shares(page):
    return page.locator(".regions td.influence").all_inner_texts()


def test_weights_are_chosen_and_every_region_shows_its_noise_and_its_share_of_the_model(clinics):
    page, federation = clinics, reading_of_bytes(CLINICS, "clinics.csv").federation
    by_size = shares(page)
    assert by_size == ["63.1%", "8.8%", "3.1%", "24.9%"]
    for weights in ("equal", "least-noise"):
        after(page, lambda weights=weights: page.locator("#weights").select_option(weights))
        made = fulcrum.plan(federation, rounds=10, epsilon=1.0, weights=weights)
        assert shares(page) == [f"{share:.1%}" for share in made.node_influence("region")]
        noise = page.locator(".regions td.noise").all_inner_texts()
        assert float(noise[0]) == pytest.approx(made.noise_multiplier[0], rel=1e-3)
    assert shares(page) != by_size
    assert "of its influence by size" in page.locator(".hints").inner_text()


def test_the_way_between_sizes_and_least_noise_is_a_slider_and_the_chart_follows(clinics):
    page = clinics
    assert page.locator("#between").is_hidden()
    rested(page, lambda: page.locator("#weights").select_option("between"))
    assert page.locator("#between").is_visible()
    before = drawn(page, "weights")
    rested(page, lambda: slide(page, "weights_share", 80))
    assert page.locator("#weights_share").input_value() == "0.8"
    made = fulcrum.plan(reading_of_bytes(CLINICS, "c.csv").federation, rounds=10, epsilon=1.0, weights=0.8)
    assert shares(page) == [f"{share:.1%}" for share in made.node_influence("region")]
    assert drawn(page, "weights") != before
    told = page.locator('figure[data-chart="weights"] figcaption').inner_text()
    left = dict(zip(made.federation.innermost.nodes, made.node_influence("region") / SHARES, strict=True))
    assert (
        f"{min(left, key=left.get)} loses most influence and keeps {min(left.values()):.2f} of its share by size"
        in told
    )
    floor = figures(page)
    assert page.locator("#least_influence").input_value() == ""  # the recipe's own
    rested(page, lambda: (page.locator("#least_influence").fill("0.9"), page.keyboard.press("Tab")))
    kept = fulcrum.plan(made.federation, rounds=10, epsilon=1.0, weights=0.8, least_influence=0.9)
    assert shares(page) == [f"{share:.1%}" for share in kept.node_influence("region")]
    assert figures(page) != floor


def test_the_joint_recipe_asks_for_parameters_where_it_is_chosen(clinics, visit):
    page = clinics
    page.locator("#recipe").select_option("joint")
    page.locator("#recipe-error:not(:empty)").wait_for()
    assert page.locator("#recipe-error").inner_text() == (
        "the recipe 'joint' clips by the noise: the clip norm needs the number of trainable parameters. Give: "
        "parameters"
    )
    assert visit.messages == [REFUSED]
    visit.messages.clear()
    after(page, lambda: (page.locator("#parameters").fill("1,000"), page.keyboard.press("Tab")))
    assert page.locator(".error:not(:empty)").count() == 0
    assert "the server pools regional sums by their noise" in page.locator(".hints").inner_text()
    after(page, lambda: page.locator("#server").select_option("sum"))
    after(page, lambda: (page.locator("#clip_norm").fill("0,5"), page.keyboard.press("Tab")))
    page.locator("#clip_norm").fill("wide")
    page.keyboard.press("Tab")
    page.get_by_text("this must be a number or auto, got 'wide'").wait_for()


def test_both_observers_have_a_verdict_in_words_at_every_epsilon(opened):
    page = opened()
    said = page.locator("#verdict p:not(.asked)")
    assert said.count() == 2
    assert said.nth(0).get_attribute("class") == "calm"
    assert "above the regions is right up to 56 of 100 times" in said.nth(0).inner_text()
    assert with_even_letters(page).locator("#verdict").bounding_box()["y"] < 300
    after(page, lambda: (page.locator("#epsilon").fill("30"), page.keyboard.press("Tab")))
    after(page, lambda: page.locator("#inside-on").check())
    after(page, lambda: (page.locator("#epsilon_inside").fill("40"), page.keyboard.press("Tab")))
    assert figures(page)[:2] == ["30", "40"]
    assert [said.nth(at).get_attribute("class") for at in (0, 1)] == ["warning", "warning"]
    assert "hardly any protection is promised" in said.nth(1).inner_text()
    calm = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--third')").strip()
    shown = page.locator("#verdict p").evaluate_all("(all) => all.map((one) => getComputedStyle(one).borderLeftColor)")
    assert calm == "#00735a"
    assert "rgb(0, 115, 90)" not in shown


def test_advice_is_followed_by_one_click(opened):
    page = opened()
    assert "all silos masked as one group would save" in page.locator("#hints").inner_text()  # no control, no option
    assert page.get_by_role("button", name="Protect persons instead of silos").count() == 1
    assert "--" not in page.locator("#head").inner_text()
    after(page, lambda: page.get_by_role("button", name="Promise 1 inside").click())
    assert figures(page)[1] == "1"
    assert page.locator("#inside-on").is_checked()
    assert page.locator("#epsilon_inside").input_value() == "1"
    assert page.get_by_role("button", name="Promise 1 inside").count() == 0
    after(page, lambda: page.locator("#inside-on").uncheck())
    both = " and ".join(best_merge(fulcrum.plan("consortium", rounds=10, epsilon=1.0)).regions)
    after(page, lambda: page.get_by_role("button", name=f"Merge {both}").click())
    assert page.locator(".regions tbody tr").count() == 5
    assert page.locator("#edited").inner_text().startswith(f"Merged {both}. Saving 88.0% →")
    after(page, lambda: page.get_by_role("button", name="Undo").click())
    after(page, lambda: (page.locator("#delta").fill("0.5"), page.keyboard.press("Tab")))
    after(page, lambda: page.get_by_role("button", name="Take delta 0.02").click())
    assert "at delta 0.02" in page.locator(".claim").inner_text()


def test_one_click_provides_for_silos_that_drop_out(clinics):
    page = clinics
    after(page, lambda: (page.get_by_label("Silos of Ost").fill("3"), page.keyboard.press("Tab")))
    after(page, lambda: (page.get_by_label("Silos of Nordost").fill("3"), page.keyboard.press("Tab")))
    after(page, lambda: page.get_by_role("button", name="Provide for 1 dropout").click())
    assert "even if up to 1 silo of each region is missing from a sum" in page.locator(".claim").inner_text()
    assert page.locator("#dropouts").input_value() == "1"


def test_a_merge_across_countries_says_whom_it_moves_before_and_after(clinics):
    page = clinics
    assert page.locator(".regions td.outer").all_inner_texts() == [
        "Deutschland",
        "Österreich",
        "Deutschland",
        "Österreich",
    ]
    page.get_by_label("Choose NRW").check()
    page.get_by_label("Choose Nordost").check()
    assert page.locator("#crossing").inner_text() == ""
    page.get_by_label("Choose Tirol").check()
    assert page.locator("#crossing").inner_text() == "Merging moves Tirol from Österreich to Deutschland."
    after(page, lambda: page.get_by_role("button", name="Merge the chosen").click())
    told = page.locator("#edited").inner_text()
    assert "Merged NRW and Tirol and Nordost. 2 silos of Tirol moved from Österreich to Deutschland. Saving" in told
    assert page.locator("#crossing").inner_text() == ""


def test_a_split_region_stands_beside_its_origin(clinics):
    page = clinics
    after(page, lambda: page.get_by_role("button", name="Split NRW").click())
    names = page.locator(".regions td.name input").evaluate_all("(all) => all.map((one) => one.value)")
    assert names == ["NRW", "NRW 2", "Tirol", "Nordost", "Ost"]
    assert page.locator("#rows tbody tr:not(.gap) td:first-child").all_inner_texts()[:4] == [
        "aachen",
        "bonn",
        "koeln",
        "essen",
    ]


@pytest.mark.parametrize("width", [390, 1280])
def test_regions_in_countries_fit_the_window(width, clinics):
    page = clinics
    page.set_viewport_size({"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    box = page.locator("#regions")
    assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth")


def test_every_control_has_help_for_a_tap_and_for_the_keyboard(opened):
    page = opened(has_touch=True)
    for control in page.locator("[data-setting]").all():
        key = control.get_attribute("data-setting")
        about = page.locator(f"#{key}-about")
        assert len(about.text_content()) > 20, key
        assert not about.is_visible()
        assert f"{key}-about" in page.locator(f"#{key}").get_attribute("aria-describedby")
    button, about = page.get_by_role("button", name="About delta"), page.locator("#delta-about")
    button.tap()
    assert about.is_visible()
    assert button.get_attribute("aria-expanded") == "true"
    button.focus()
    page.keyboard.press("Enter")
    assert not about.is_visible()


def test_an_arrow_key_moves_every_slider_to_a_number_that_reads_otherwise(opened):
    page = opened()
    shown = page.locator("#epsilon").input_value
    page.locator("#epsilon-slider").focus()
    for key, value in (("ArrowRight", "1.1"), ("ArrowUp", "1.2"), ("ArrowLeft", "1.1"), ("ArrowDown", "1")):
        after(page, lambda key=key: page.keyboard.press(key))
        assert shown() == value
    after(page, lambda: (page.locator("#epsilon").fill("20"), page.keyboard.press("Tab")))
    page.locator("#epsilon-slider").focus()
    page.keyboard.press("ArrowRight")
    assert shown() == "20"  # the end of the slider


def test_deployment_takes_the_accountant_of_the_command_line_and_asks_for_parameters_in_view(opened, visit):
    page = opened()
    page.set_viewport_size({"width": 1280, "height": 700})
    page.locator("#purpose").select_option("deployment")
    page.locator("#purpose-error:not(:empty)").wait_for()
    assert page.locator("#purpose-error").evaluate(
        """(error) => {
          const [inner, outer] = [error, error.closest(".settings-card")].map((part) => part.getBoundingClientRect());
          return inner.bottom <= Math.min(outer.bottom, innerHeight) && inner.top >= Math.max(outer.top, 0);
        }"""
    )
    visit.messages.clear()
    after(page, lambda: (page.locator("#parameters").fill("10"), page.keyboard.press("Tab")))
    made = fulcrum.plan("consortium", rounds=10, epsilon=1.0, purpose="deployment", parameters=10)
    assert made.accountant == "renyi"
    noise = page.locator("#rows tbody tr:not(.gap) td:nth-child(6)").first.inner_text()
    assert float(noise) == pytest.approx(made.noise_multiplier[0], rel=1e-5)


def test_all_regions_are_in_sight_and_their_names_whole(opened):
    page = opened()
    names = [f"Landesverband der Krankenhäuser {k}" for k in range(1, 17)]
    table = "silo,records,region\n" + "".join(f"s{k},{100 + k},{name}\n" for k, name in enumerate(names))
    after(page, lambda: chosen(page, "many.csv", table.encode()))
    assert page.locator("#regions").evaluate("(box) => box.scrollHeight <= box.clientHeight + 1")
    fields = page.locator(".regions .name input").evaluate_all(
        "(fields) => fields.map((field) => [field.value, field.scrollWidth - field.clientWidth])"
    )
    assert [name for name, _ in fields] == names
    assert max(over for _, over in fields) <= 0
