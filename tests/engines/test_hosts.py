"""Hosts, ports and training modules that reach scripts, certificates and kits: names and addresses, and nothing that a shell obeys."""

import re
import subprocess

import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.engines.nvflare.kits.nvflare_kits import write_kits as nvflare_kits
from fulcrum.engines.site_folders import Deployment
from fulcrum.errors import ParameterError, PlanError

SIZES = {"north": dict.fromkeys(("caen", "lille", "metz"), 100)}
HOSTILE = [
    "x$(touch made)",
    "a b",
    "`id`",
    "a;b",
    "a'b",
    'a"b',
    "a\nb",
    "-a",
    "",
    "a..b",
    "ü.org",
    "a" * 254,
    "[::1]",
    "::1%lo",
]


def planned(**settings):
    options = {"rounds": 2, "epsilon": 1.0, "purpose": "deployment", "parameters": 20} | settings
    return fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), **options)


@pytest.mark.parametrize("host", ["localhost", "fl.example.org", "FL-2.example", "192.0.2.7", "::1", "2001:db8::7"])
def test_names_and_addresses_are_hosts(host):
    found = Deployment(plan=planned(), train="unused", host=host, port=9092)
    assert found.address == (f"[{host}]:9092" if ":" in host else f"{host}:9092")


@pytest.mark.parametrize("host", HOSTILE)
def test_what_is_neither_a_name_nor_an_address_is_no_host(host):
    with pytest.raises(ParameterError, check=coded("kit.host-name")) as caught:
        Deployment(plan=planned(), train="unused", host=host)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("module", ["a\nb", "a`id`", "a\x7f", "a b", "a/b", "a.", ".a", "a..b", "", "a:b", "1a", "a-b"])
def test_what_python_does_not_import_is_no_training_module(module):
    with pytest.raises(ParameterError, check=coded("kit.training-module-name")) as caught:
        Deployment(plan=planned(), train=module)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("module", ["training", "hospital.training_2", "_own", "étude.modèle"])
def test_dotted_identifiers_are_training_modules(module):
    assert Deployment(plan=planned(), train=module).train == module


@pytest.mark.parametrize("port", [-1, 0, 65_535, 70_000])
def test_a_deployment_needs_a_port_and_the_one_after_it(port):
    with pytest.raises(ParameterError, check=coded("kit.port-range")):
        Deployment(plan=planned(), train="unused", port=port)


@pytest.mark.parametrize("engine", ["flower", "nvflare"])
@pytest.mark.parametrize("host", ["x$(touch made)", "a b"])
def test_a_host_that_is_none_is_told_in_one_line(engine, host, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fulcrum.save_plan(planned(aggregation="masked" if engine == "flower" else "trusted"), "plan.json")
    assert run(["deploy", engine, "plan.json", "-o", "kits", "--host", host]) == 2
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 1)
    assert told.err.startswith("fulcrum: the host must be a name such as")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json"]


def test_flare_refuses_an_ipv6_address_before_anything_is_written(tmp_path):
    deployment = Deployment(plan=planned(), train="unused", host="2001:db8::7")
    told = "NVIDIA FLARE reaches a server by a name or an IPv4 address, got '2001:db8::7'. Give --host a name"
    with pytest.raises(PlanError, match=re.escape(told)):
        nvflare_kits(deployment, tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


@pytest.mark.parametrize(
    ("host", "address", "listens"), [("::1", "[::1]:9092", "::"), ("192.0.2.7", "192.0.2.7:9092", "0.0.0.0")]
)
def test_scripts_of_flower_hold_the_address_that_a_shell_reads_as_one_word(tmp_path, host, address, listens):
    pytest.importorskip("cryptography", reason="needs the extra flower")
    from fulcrum.engines.flower.kits.flower_kits import write_kits

    deployment = Deployment(plan=planned(aggregation="masked"), train="unused", host=host, port=9092)
    write_kits(deployment, tmp_path / "kits")
    shown = 'flower-supernode() { printf \'%s\\n\' "$@"; }; exec() { "$@"; }; . '
    words = subprocess.run(
        ["bash", "-c", f"{shown} '{tmp_path}/kits/lille/start.sh'"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert words[:2] == ["--superlink", address]
    assert f'--host "${{HOST:-{listens}}}" --port 9092' in (tmp_path / "kits/server/start.sh").read_text()
