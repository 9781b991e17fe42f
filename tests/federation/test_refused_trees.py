"""Every wrong tree of silos, in TOML or of NVFLARE, is refused in one line that says where and what to do."""

import pytest
from sources import refusal, written

# TOML

OUTER = 'tiers = ["region", "country"]\n'


WRONG_TOML = [
    ("", "a.toml: the table [region] is missing. Add the table [region] with the nodes of the tier"),
    ("[region.north\n", "a.toml line 1: not valid TOML: Expected ']' at the end of a table declaration"),
    ("[region.north]\na = 1\n\nb = \n", "a.toml line 4: not valid TOML: Invalid value"),
    ("[region.north]\na = 1\na = 2\n", "a.toml line 3: not valid TOML: Cannot overwrite a value"),
    ("a = " + "[" * 5000, "a.toml is nested too deeply to be read"),
    (
        "[regoin.north]\na = 1\n",
        "a.toml line 1: unknown key 'regoin'. Known: name, tiers, region, group. Did you mean 'region'?",
    ),
    (
        "[region.north]\na = 1\n\n[country]\nfrance = ['north']\n",
        "a.toml line 4: unknown key 'country'. Known: name, tiers, region, group. "
        "An outer tier must be listed in tiers",
    ),
    (
        "[region.north]\na = { record = 1 }\n",
        "a.toml line 2: unknown key 'record' of silo 'a'. Known: records, epsilon, weight. Did you mean 'records'?",
    ),
    ("name = 3\n", "a.toml line 1: name must be printable text, got a number"),
    ('\ntiers = "region"\n', 'a.toml line 2: tiers must be a list of names, inner to outer: ["region", "country"]'),
    ("tiers = []\n", 'a.toml line 1: tiers must be a list of names, inner to outer: ["region", "country"]'),
    ('tiers = ["region", "region"]\n', "a.toml line 1: tier 'region' is listed twice. Remove one"),
    ('tiers = ["silo"]\n', "a.toml line 1: a tier cannot be called 'silo': that name has a meaning of its own"),
    ('tiers = ["name"]\n', "a.toml line 1: a tier cannot be called 'name'"),
    ("region = 3\n", "a.toml line 1: region must be a table, got a number"),
    ("[region]\n", "a.toml line 1: the table [region] is empty. Add an entry, or remove the table"),
    (
        "[region]\nnorth = 3\n",
        "a.toml line 2: region 'north' must hold its silos, one line each: lille = 800",
    ),
    ("[region.north]\n", "a.toml line 1: region 'north' must hold its silos, one line each: lille = 800"),
    ("[region.north]\na = -3\n", "a.toml line 2: records=-3 must be at least 1"),
    ("[region.north]\na = nan\n", "a.toml line 2: records=nan must be a finite number"),
    ("[region.north]\na = 1\nb = inf\n", "a.toml line 3: records=inf must be a finite number"),
    (
        "[region.north]\na = true\n",
        "a.toml line 2: records=True is not a number. Write the number in plain digits, such as 1200",
    ),
    (
        "[region.north]\na = [1]\n",
        "a.toml line 2: records=(list) is not a number. Write the number in plain digits, such as 1200",
    ),
    (
        "[region.north]\na = { epsilon = 1 }\nb = 5\n",
        "a.toml line 2: records is missing. Give the number of records of silo 'a'",
    ),
    (
        "[region.north.a]\nrecords = 5\nepsilon = 'low'\n",
        "a.toml line 1: epsilon='low' is not a number. Give a number above 0, or leave the cell empty",
    ),
    (
        "[region.north]\na = { records = 5, epsilon = 0 }\n",
        "a.toml line 2: epsilon must be a finite number above 0, got 0",
    ),
    (
        "[region.north]\na = 1\n[region.south]\na = 1\n",
        "a.toml line 4: overlap: silo a is in two regions, 'north' and 'south'. Keep one of the two rows, or split "
        "the silo into two silos with disjoint records",
    ),
    (
        OUTER + "[region.north]\na = 1\n",
        "a.toml line 1: the table [country] is missing. Add the table [country] with the nodes of the tier",
    ),
    (
        OUTER + "[region.north]\na = 1\n[country]\nfrance = []\n",
        'a.toml line 5: country \'france\' must list its regions: ["north", "south"]',
    ),
    (
        OUTER + "[region.north]\na = 1\n[country]\nfrance = ['nort']\n",
        "a.toml line 5: country 'france' names region 'nort', and there is no region of this name. Known regions: north. Did you mean 'north'?",
    ),
    (
        OUTER + "[region]\nnorth.a = 1\nsouth.b = 1\n[country]\nfrance = ['north']\n",
        "a.toml line 5: region 'south' is in no country. Add 'south' to one of: france",
    ),
    (
        OUTER + "[region.north]\na = 1\n[country]\nfrance = ['north']\nspain = ['north']\n",
        "a.toml line 6: region 'north' is listed under country 'france' and 'spain'. Keep 'north' under one of the two",
    ),
    (
        "[region.north]\nparis = 1\n[group]\nuniversity = ['pariss']\n",
        "a.toml line 4: group 'university' names silo 'pariss', and there is no silo of this name. Known silos: paris. Did you mean 'paris'?",
    ),
    (
        "[region.north]\nparis = 1\n[group]\nx = ['paris']\ny = ['paris']\n",
        "a.toml line 5: silo 'paris' is listed under group 'x' and 'y'. Keep 'paris' under one of the two",
    ),
    (b"name = 'a'\n[region.caf\xe9]\n", "a.toml line 2 is not UTF-8. Save the file as UTF-8"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_TOML)
def test_a_wrong_toml_is_refused_in_one_line(tmp_path, text, message):
    assert refusal(written(tmp_path, "a.toml", text)).startswith(message)


# NVFLARE


def project(*participants):
    return "participants:\n" + "".join(f"- {{{entry}}}\n" for entry in participants)


SITE = "name: a, type: client"


WRONG_YAML = [
    ("", "a.yml: the list 'participants' is missing. Is it an NVFLARE project file?"),
    ("- 1\n", "a.yml: the list 'participants' is missing. Is it an NVFLARE project file?"),
    (
        "partcipants: []\n",
        "a.yml: the list 'participants' is missing. Did you mean 'partcipants' to be 'participants'?",
    ),
    ("participants: []\n", "a.yml has no clients. Add a participant of type client for each silo"),
    ("participants:\n- {name: [\n", "a.yml line 3: not valid YAML: "),
    ("a: 2024-13-45\n", "a.yml: not valid YAML: a value does not fit its type: month must be in 1..12"),
    ("[" * 5000, "a.yml is nested too deeply to be read"),
    ("participants: [5]\n", "a.yml line 1: a participant must have a name and a type, got a number"),
    (
        project("type: client"),
        (
            "a.yml line 2: the participant has no name, or a name that cannot be printed. Give the participant a "
            "printable name"
        ),
    ),
    (project(SITE, SITE), "a.yml line 3: participant 'a' is listed twice, first at line 2. Remove one of the two"),
    (
        project("name: a, type: cleint"),
        "a.yml line 2: the type of 'a' must be one of server, client, relay, admin, overseer, got 'cleint'. "
        "Did you mean 'client'?",
    ),
    (
        project("name: a"),
        "a.yml line 2: the type of 'a' must be one of server, client, relay, admin, overseer, got nothing",
    ),
    (project(f"{SITE}, record: 5"), "a.yml line 2: unknown key 'record' of 'a'. Did you mean 'records'?"),
    (project(f"{SITE}, parents: b"), "a.yml line 2: unknown key 'parents' of 'a'. Did you mean 'parent'?"),
    (
        project("name: north, type: relay", f"{SITE}, parent: nort"),
        "a.yml line 3: 'a' names parent 'nort', and the project has no participant of this name. Did you mean 'north'?",
    ),
    (
        project("name: boss, type: admin", f"{SITE}, parent: boss"),
        "a.yml line 3: 'a' names parent 'boss', which is of type 'admin'. Name a client, a relay or the server as parent",
    ),
    (
        project("name: r, type: relay, parent: s", "name: s, type: relay, parent: r", f"{SITE}, parent: r"),
        "a.yml line 2: the parents form a cycle: r -> s -> r. Remove one of these parents",
    ),
    (project(f"{SITE}, parent: a"), "a.yml line 2: the parents form a cycle: a -> a. Remove one of these parents"),
    (
        project(
            "name: r, type: relay",
            "name: s, type: relay, parent: r",
            f"{SITE}, parent: r",
            "name: b, type: client, parent: s",
        ),
        "a.yml line 5: silo 'b' has 2 levels of parents and silo 'a' has 1. Give every silo with a parent the same "
        "number of levels",
    ),
    (
        project("name: r, type: client, records: 5", f"{SITE}, parent: r"),
        "a.yml line 2: 'r' has records but is the parent of 'a', and only silos hold data. Remove the records of "
        "'r', or add a client for the records",
    ),
    (
        project(f"{SITE}, records: 5", "name: b, type: client"),
        "a.yml line 3: records is missing. Give the number of records of silo 'b'",
    ),
    (project(f"{SITE}, records: -3"), "a.yml line 2: records=-3 must be at least 1"),
    (project(f"{SITE}, records: .nan"), "a.yml line 2: records=nan must be a finite number"),
    (
        project(f"{SITE}, records: many"),
        "a.yml line 2: records='many' is not a number. Write the number in plain digits, such as 1200",
    ),
    (project(f"{SITE}, records: 0x{'f' * 5000}"), "a.yml line 2: records=inf must be a finite number"),
    (project(f"{SITE}, epsilon: 0"), "a.yml line 2: epsilon must be a finite number above 0, got 0"),
    ("a: 1\nb: caf\xe9\n".encode("latin-1"), "a.yml line 2 is not UTF-8. Save the file as UTF-8"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_YAML)
def test_a_wrong_project_file_is_refused_in_one_line(tmp_path, text, message):
    assert refusal(written(tmp_path, "a.yml", text)).startswith(message)
