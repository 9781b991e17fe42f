"""Whatever a file holds, it is read or refused in one line; whatever a federation holds, every format keeps it."""

import random
import string

import pandas as pd
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sources import COLUMNS, HEAD, doc_example, parquet, refusal, written

from fulcrum.errors import FulcrumError
from fulcrum.readers.federation import Federation
from fulcrum.readers.federation_reader import read_federation

FUZZ = settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])


def reads_or_refuses(folder, name, content):
    """Either a federation, or one line of a FulcrumError: any other exception fails the test."""
    try:
        outcome = read_federation(written(folder, name, content)).digest
    except FulcrumError as error:
        outcome = str(error)
    assert outcome.isprintable()


def mangled(text):
    """Valid text with a few pieces deleted, doubled or replaced."""
    pieces = st.sampled_from(
        ["", ",", '"', "\n", "=", "[", "]", "{", "}", ":", "- ", "nan", "1e308", "-1", "é", "\0", "x"]
    )

    def apply(edits):
        result = text
        for where, length, piece in edits:
            at = int(where * len(result))
            result = result[:at] + piece + result[at + length :]
        return result

    places = st.floats(0, 1, exclude_max=True)
    return st.lists(st.tuples(places, st.integers(0, 6), pieces), min_size=1, max_size=5).map(apply)


VALID = {"a.csv": doc_example("csv"), "a.toml": doc_example("toml"), "a.yml": doc_example("yaml")}


@pytest.mark.parametrize("name", [*VALID, "a.parquet"])
@FUZZ
@given(content=st.binary(max_size=200))
@example(content=b"\xff\xfe")
def test_arbitrary_bytes_are_read_or_refused(tmp_path, name, content):
    reads_or_refuses(tmp_path, name, content)


@pytest.mark.parametrize("name", VALID)
@FUZZ
@given(content=st.text(st.characters(codec="utf-8"), max_size=200))
def test_arbitrary_text_is_read_or_refused(tmp_path, name, content):
    reads_or_refuses(tmp_path, name, content)
    start = {"a.csv": f"{HEAD}\n", "a.toml": "[region.north]\n", "a.yml": "participants:\n- "}[name]
    reads_or_refuses(tmp_path, name, start + content)


@pytest.mark.parametrize("name", VALID)
@FUZZ
@given(data=st.data())
def test_mangled_files_are_read_or_refused(tmp_path, name, data):
    reads_or_refuses(tmp_path, name, data.draw(mangled(VALID[name])))


@FUZZ
@given(
    participants=st.lists(
        st.dictionaries(
            st.sampled_from(["name", "type", "parent", "records", "epsilon"]),
            st.one_of(st.sampled_from(["a", "b", "c", "client", "relay"]), st.integers(-1, 9), st.none(), st.floats()),
        ),
        max_size=6,
    )
)
def test_arbitrary_projects_are_read_or_refused(tmp_path, participants):
    reads_or_refuses(tmp_path, "a.yml", project(participants))


@pytest.mark.parametrize(
    "tag", ["!!int", "!!float", "!!bool", "!!timestamp", "!!binary", "!!python/name:os.system", "!!set"]
)
def test_yaml_tags_that_do_not_fit_are_refused(tmp_path, tag):
    assert refusal(written(tmp_path, "a.yml", f'participants: {tag} ""\n')).startswith("a.yml")


def test_a_damaged_parquet_file_is_read_or_refused(tmp_path):
    rng = random.Random(0)
    content = bytearray(parquet(tmp_path, COLUMNS).read_bytes())
    for _ in range(60):
        at = rng.randrange(len(content) // 3)  # the pages; a damaged footer can claim any number of rows
        reads_or_refuses(tmp_path, "a.parquet", bytes(content[:at] + b"\xff" + content[at + 1 :]))


def project(people):
    """Returns people as a project file; skips the test where PyYAML is not installed."""
    yaml = pytest.importorskip("yaml", reason="project files need pyyaml")
    return yaml.safe_dump({"participants": people})


NAMES = st.text(string.ascii_letters + string.digits + "-_ é.", min_size=1, max_size=8).map(str.strip).filter(bool)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    regions=st.dictionaries(NAMES, st.integers(1, 4), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 10**6), min_size=16, max_size=16),
)
def test_any_federation_is_the_same_after_every_format(tmp_path, regions, sizes):
    rows = [(f"{region}/{k}", region) for region, count in regions.items() for k in range(count)]
    columns = {"silo": [r[0] for r in rows], "records": sizes[: len(rows)], "region": [r[1] for r in rows]}
    entries = list(zip(columns["silo"], columns["records"], columns["region"], strict=True))
    nested = {region: {s: n for s, n, r in entries if r == region} for region in regions}
    expected = Federation.from_sizes(nested).digest
    pl.DataFrame(columns).write_csv(tmp_path / "a.csv")
    toml = "".join(
        f'[region."{region}"]\n' + "".join(f'"{silo}" = {size}\n' for silo, size in silos.items())
        for region, silos in nested.items()
    )
    people = [{"name": f"to {region}", "type": "relay"} for region in regions]
    people += [{"name": s, "type": "client", "parent": f"to {r}", "records": n} for s, n, r in entries]
    flare = Federation.from_sizes({f"to {region}": silos for region, silos in nested.items()}).digest
    assert read_federation(tmp_path / "a.csv").digest == expected
    assert read_federation(written(tmp_path, "a.toml", toml)).digest == expected
    assert read_federation(written(tmp_path, "a.yml", project(people))).digest == flare
    assert read_federation(parquet(tmp_path, columns)).digest == expected
    assert read_federation(pd.DataFrame(columns)).digest == expected
