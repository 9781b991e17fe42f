"""One new user in a browser, from a spreadsheet as people export it to a signed plan."""

import pytest
from page_browser import REFUSED, after, chosen, drop, figures, rested

import fulcrum
from fulcrum.cli import command_line as cli
from fulcrum.readers.federation_reader import read_federation
from fulcrum.words.numbers import epsilon_text

pytest.importorskip("uvicorn", reason="the page needs uvicorn")
pytest.importorskip("starlette", reason="the page needs starlette")
pytest.importorskip("vl_convert", reason="the page needs vl-convert-python")

MESSY = """KLINIK;Telefon;Anzahl Fälle;Bundesland;Land;Stand
Köln;0221-1;2 631;NRW;Deutschland;05/2026
Bonn;0228-1;850;NRW;Deutschland;05/2026
Rostock;0381-1;1 240;Nordost;Deutschland;05/2026
Innsbruck;0512-1;640;Tirol;Österreich;05/2026
Hall;05223-1;310;Tirol;Österreich;05/2026
Summe;;5 671;;;
;;;;;
""".replace("\n", "\r\n").encode("cp1252")


def saved(page, button, folder):
    with page.expect_download() as download:
        button.click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_a_new_user_gets_from_a_messy_file_to_a_signed_plan(opened, visit, tmp_path, capsys):
    pytest.importorskip("cryptography", reason="signing needs cryptography")
    page = opened()

    # The file is refused with what to do, which is a button.
    chosen(page, "Kliniken 2026.csv", MESSY)
    page.locator("#file-error:not(:empty)").wait_for()
    assert "Telefon" in page.locator("#file-error").inner_text()
    assert visit.messages == [REFUSED]
    visit.messages.clear()
    after(page, lambda: page.locator("#file-error").get_by_role("button", name="Ignore Telefon").click())

    # It is read, and the page says how; a column taken for a tier is left out by another button.
    assert page.locator(".regions td.outer").all_inner_texts()[0] == "Deutschland, 05/2026"
    after(page, lambda: page.locator("#notes").get_by_role("button", name="Ignore Stand").click())
    assert page.locator("h1").inner_text() == "Kliniken 2026"
    notes = page.locator("#notes li").all_inner_texts()
    assert "cells are separated by semicolons" in notes
    assert "records: spaces separate thousands, as in 2 631" in notes
    assert any("silo from 'KLINIK'" in note for note in notes)
    assert any("'Summe'" in note and "is left out" in note for note in notes)
    assert page.locator(".regions td.outer").all_inner_texts() == ["Deutschland", "Deutschland", "Österreich"]
    clean = saved(page, page.get_by_role("button", name="Download it cleaned"), tmp_path)
    (tmp_path / "messy.csv").write_bytes(MESSY)
    as_fulcrum_reads_it = read_federation(tmp_path / "messy.csv", columns={"ignore": ["Telefon", "Stand"]})
    assert read_federation(clean).digest == as_fulcrum_reads_it.digest
    assert clean.read_text().splitlines()[1] == "Köln,2631,NRW,Deutschland"

    # The verdict is there, and advice is followed by clicks.
    assert "right up to" in page.locator("#verdict").inner_text()
    after(page, lambda: page.get_by_role("button", name="Merge NRW and Nordost").click())
    assert page.locator(".regions td.outer").all_inner_texts() == ["Deutschland", "Österreich"]
    after(page, lambda: page.get_by_role("button", name="Promise").first.click())
    assert page.locator("#inside-on").is_checked()

    # Other weights are looked at, and who would pay for them.
    rested(page, lambda: page.locator("#weights").select_option("equal"))
    assert page.locator(".regions td.influence").count() == 2

    # A plan for deployment is asked for what it needs, taken home, signed and verified.
    page.locator("#purpose").select_option("deployment")
    page.locator("#purpose-error:not(:empty)").wait_for()
    assert "Give: parameters" in page.locator("#purpose-error").inner_text()
    assert visit.messages == [REFUSED]
    visit.messages.clear()
    after(page, lambda: (page.locator("#parameters").fill("1 000"), page.keyboard.press("Tab")))
    assert "deployment plan" in page.locator(".status").inner_text()
    plan = saved(page, page.get_by_role("button", name="Plan", exact=True), tmp_path)
    made = fulcrum.read_plan(plan)
    assert (made.purpose, made.accountant, made.parameters, made.weights_rule) == ("deployment", "renyi", 1000, "equal")
    assert figures(page)[0] == epsilon_text(made.worst_epsilon())
    key = tmp_path / "issuer"
    assert cli.run(["keygen", "-o", str(key)]) == 0
    assert cli.run(["sign", str(plan), "--key", str(key)]) == 0
    capsys.readouterr()
    assert cli.run(["verify", str(plan), "--issuer", f"{key}.pub"]) == 0
    assert "Every check holds" in capsys.readouterr().out


def test_a_plain_file_needs_no_words_about_its_reading(opened):
    page = opened()
    after(page, lambda: chosen(page, "plain.csv", b"silo,records,region\na,10,n\nb,20,s\n"))
    assert page.locator("#reading").is_hidden()
    after(page, lambda: drop(page, "semicolons.csv", r"'silo;records;region\na;10;n\nb;20;s'"))
    assert page.locator("#reading").is_visible()
    assert page.locator("#reading-name").inner_text() == "semicolons.csv"
    after(page, lambda: chosen(page, "plain.csv", b"silo,records,region\na,10,n\nb,20,s\n"))
    assert page.locator("#reading").is_hidden()


def test_a_fraction_of_a_record_is_refused_in_one_line(opened, visit):
    page = opened()
    chosen(page, "export.csv", b"silo,records,region\na,2631.5,n\nb,850,s\n")
    page.locator("#file-error:not(:empty)").wait_for()
    told = page.locator("#file-error").inner_text()
    assert told.startswith("export.csv line 2: records=2631.5 must be a whole number")
    assert page.locator("h1").inner_text() == "consortium"
    assert visit.messages == [REFUSED]
    visit.messages.clear()
