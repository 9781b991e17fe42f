"""The unit of privacy on the page: the settings make the plan, and the words follow the settings."""

import json

import pytest
from page_browser import after, figures

import fulcrum
from fulcrum.views.page.page_settings import PageSettings

pytest.importorskip("uvicorn", reason="the page needs uvicorn")
pytest.importorskip("starlette", reason="the page needs starlette")
pytest.importorskip("vl_convert", reason="the page needs vl-convert-python")

PATIENTS = {"unit": "person", "unit_name": "patient", "neighbours": "add-remove", "silos_per_person": 2}


def test_the_settings_of_the_unit_make_the_plan_of_the_library(client):
    reply = client.plan(path="/download/plan.json", **PATIENTS)
    assert reply.status == 200
    made = fulcrum.plan("consortium", rounds=10, epsilon={"region": 1.0}, **PATIENTS)
    assert json.loads(reply.body)["digest"] == made.digest


def test_an_answer_names_persons_and_leaves_the_information_of_silos_out(client):
    answer = client.plan(**PATIENTS).json()
    assert answer["size_word"] == "patients"
    assert "information" not in answer["charts"]
    assert "whole dataset" not in answer["head"]
    assert "whether up to 2 silos hold one patient" in answer["head"]
    assert "A silo as a whole is not protected" in answer["head"]
    silos = client.plan().json()
    assert silos["size_word"] == "records"
    assert "information" in silos["charts"]


def test_settings_of_persons_need_the_unit_and_a_federation_without_sizes_needs_a_number(client):
    assert "the unit of privacy is the silo" in client.plan(neighbours="add-remove").error
    assert PageSettings(**PATIENTS, persons_per_silo=100.0).persons_per_silo == 100.0
    assert "Leave persons_per_silo out" in client.plan(**PATIENTS, persons_per_silo=100.0).error


def test_the_words_of_the_page_follow_the_unit(opened):
    page = opened()
    assert not page.locator("#of-persons").is_visible()
    after(page, lambda: page.locator("#unit").select_option("person"))
    assert page.locator("#of-persons").is_visible()
    after(page, lambda: (page.locator("#unit_name").fill("patient"), page.keyboard.press("Tab")))
    assert "every patient's records in one silo have" in page.locator(".claim").inner_text()
    assert "A silo as a whole is not protected" in page.locator(".further").inner_text()
    assert "mean patients" in page.locator(".regions thead").inner_text()
    assert "patients" in page.locator("#rows thead").inner_text()
    assert not page.locator("#information").is_visible()
    assert figures(page)[0] == "1"
    after(page, lambda: page.locator("#unit").select_option("silo"))
    assert "every silo's whole dataset has" in page.locator(".claim").inner_text()
    assert page.locator(".further").count() == 0
    assert "mean records" in page.locator(".regions thead").inner_text()
    page.wait_for_selector("#information")
