r"""Silos from files that describe a federation as a tree: Fulcrum's TOML and the project.yml of NVIDIA FLARE.

>>> text = "[region.north]\nlille = 800\n[region.south]\nlyon = 1200"
>>> toml_federation(text, "hospitals.toml", "hospitals").weights.tolist()
[0.4, 0.6]
"""

import gc
import re
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

from fulcrum.core.topology import tier_name_problem
from fulcrum.errors import FederationError, MissingExtraError, listing, suggestion
from fulcrum.readers.federation import Federation
from fulcrum.readers.silo_table import Silos, misspelt, tree_key_problem

_KEY = r"""(?:"[^"\\]*"|'[^']*'|[\w-]+)"""
_KEYS = rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*"
_TABLE_LINE = re.compile(rf"\s*\[{_KEYS}\]")
_VALUE_LINE = re.compile(rf"{_KEYS}=")
_DEPTH = 4  # keys that a message can be about: tier, node, silo, records
_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")

_PARTICIPANT_TYPES = ("server", "client", "relay", "admin", "overseer")
_SILO_KEYS = ("records", "epsilon", "weight")
_PARTICIPANT_KEYS = ("name", "type", "parent", *_SILO_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Silos of a file, with an entry for every silo in every list.

    Attributes:
        name: The name of the federation.
        silo: Names of the silos.
        records: Sizes, not yet checked; None if missing. If all are missing, sizes are not declared.
        epsilon: Declared preferences, not yet checked; None if missing.
        weight: Declared weights, not yet checked; None if missing.
        labels: By tier, inner to outer, the node of every silo; under "group" the group, "" for a group of its own.
        locate: Returns the place of a silo: "hospitals.toml line 4".
    """

    name: str
    silo: list[str] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    epsilon: list[Any] = field(default_factory=list)
    weight: list[Any] = field(default_factory=list)
    labels: dict[str, list[str]] = field(default_factory=dict)
    locate: Callable[[int], str]

    def federation(self, file: str) -> Federation:
        """Returns the federation of the rows, after the checks for every format."""
        silos = Silos(list(self.labels), self.locate)
        records, weight = (
            None if set(map(type, column)) <= {type(None)} else column for column in (self.records, self.weight)
        )
        silos.add(self.silo, records, self.labels, self.epsilon, weight)
        return silos.federation(self.name, file)


def toml_federation(text: str, file: str, default_name: str) -> Federation:
    """Returns the federation of a TOML file; the schema is in docs/federation-files.md."""
    data = _parse_toml(text, file)
    lines = _toml_lines(text)

    def place(*path: str) -> str:
        """Returns the line of a key, or of the nearest enclosing key with a known line."""
        while path and path not in lines:
            path = path[:-1]
        return f"{file} line {lines[path]}" if path else file

    name = data.get("name", default_name)
    if not (isinstance(name, str) and name and name.isprintable()):
        raise FederationError("tree.name-unprintable", place=place("name"), kind=_kind(name))
    tiers = _tier_names(data, place)
    keys = ("name", "tiers", *tiers, "group")
    for key in data:
        if reserved := tree_key_problem(key):
            raise FederationError("tree.key-reserved", place=place(key), key=key, reason=reserved)
        if key not in keys:
            hint = suggestion(key, keys) or " An outer tier must be listed in tiers"
            raise FederationError("tree.key-unknown", place=place(key), key=key, known=listing(keys), suggestion=hint)

    where: list[tuple[str, ...]] = []
    rows = _Rows(name=name, locate=lambda row: place(*where[row]))
    innermost = rows.labels[tiers[0]] = []
    for node, silos in _table(data, tiers[0], place).items():
        if not isinstance(silos, dict) or not silos:
            raise FederationError("tree.silos-missing", place=place(tiers[0], node), tier=tiers[0], node=node)
        for silo, value in silos.items():
            where.append((tiers[0], node, silo))
            entry = value if isinstance(value, dict) else {"records": value}
            for key in entry:
                if reserved := tree_key_problem(key):
                    raise FederationError(
                        "tree.silo-key-reserved", place=place(*where[-1]), silo=silo, key=key, reason=reserved
                    )
                if key not in _SILO_KEYS:
                    hint = suggestion(key, _SILO_KEYS)
                    known_keys = listing(_SILO_KEYS)
                    raise FederationError(
                        "tree.silo-key-unknown",
                        place=place(*where[-1]),
                        key=key,
                        silo=silo,
                        known=known_keys,
                        suggestion=hint,
                    )
            rows.silo.append(silo)
            rows.records.append(entry.get("records"))
            rows.epsilon.append(entry.get("epsilon"))
            rows.weight.append(entry.get("weight"))
            innermost.append(node)

    children = innermost
    for inner, tier in pairwise(tiers):
        parent = _parents(_table(data, tier, place), tier, inner, dict.fromkeys(children), place)
        for child in children:
            if child not in parent:
                nodes = listing(data[tier])
                raise FederationError(
                    "tree.child-unplaced", place=place(tier), inner=inner, child=child, tier=tier, nodes=nodes
                )
        rows.labels[tier] = children = [parent[child] for child in children]
    if "group" in data:
        group = _parents(_table(data, "group", place), "group", "silo", dict.fromkeys(rows.silo), place)
        rows.labels["group"] = [group.get(silo, "") for silo in rows.silo]
    return rows.federation(file)


def _parse_toml(text: str, file: str) -> dict[str, Any]:
    collecting = gc.isenabled()
    gc.disable()  # the search for garbage would take most of the time, and the parser leaves no garbage
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise FederationError("federation.nesting-depth", file=file) from None
    except ValueError as error:
        problem = str(error)
        match = _TOML_PLACE.search(problem)
        line = match[1] if match and match[1] else text.count("\n") + 1
        raise FederationError("tree.toml-syntax", file=file, line=line, reason=_TOML_PLACE.sub("", problem)) from None
    finally:
        if collecting:
            gc.enable()


def _toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """Returns the line of every key that a plain scan of the text meets: tomllib does not keep lines."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _TABLE_LINE.match(line):
            path = table = _key_path(header[1])
        elif value := _VALUE_LINE.match(line):
            path = (*table, *_key_path(value[1]))
        else:
            continue
        for end in range(1, min(len(path), _DEPTH) + 1):
            lines.setdefault(path[:end], number)
    return lines


def _key_path(dotted: str) -> tuple[str, ...]:
    return tuple(key[1:-1] if key[0] in "\"'" else key for key in re.findall(_KEY, dotted))


def _tier_names(data: Mapping[str, Any], place: Callable[..., str]) -> list[str]:
    tiers = data.get("tiers", ["region"])
    if not isinstance(tiers, list) or not tiers or not all(isinstance(tier, str) for tier in tiers):
        raise FederationError("tree.tiers-type", place=place("tiers"))
    for k, tier in enumerate(tiers):
        problem = tier_name_problem(tier) if tier not in ("name", "tiers") else f"a tier cannot be called {tier!r}"
        if problem:
            raise FederationError("tree.tier-name", place=place("tiers"), reason=problem)
        if tier in tiers[:k]:
            raise FederationError("tree.tier-repeated", place=place("tiers"), tier=tier)
    return tiers


def _table(data: Mapping[str, Any], key: str, place: Callable[..., str]) -> dict[str, Any]:
    """Returns a table of the file; refuses a missing table, an empty table and a value of a different kind."""
    table = data.get(key)
    if table is None:
        raise FederationError("tree.table-missing", place=place("tiers"), key=key)
    if not isinstance(table, dict):
        raise FederationError("tree.table-type", place=place(key), key=key, kind=_kind(table))
    if not table:
        raise FederationError("tree.table-empty", place=place(key), key=key)
    return table


def _parents(
    nodes: Mapping[str, Any], tier: str, inner: str, children: Mapping[str, None], place: Callable[..., str]
) -> dict[str, str]:
    """Returns the node of every child, from lists of children by node."""
    parent: dict[str, str] = {}
    for node, members in nodes.items():
        if not isinstance(members, list) or not members or not all(isinstance(child, str) for child in members):
            raise FederationError("tree.members-type", place=place(tier, node), tier=tier, node=node, inner=inner)
        for child in members:
            if child not in children:
                near = suggestion(child, children)
                raise FederationError(
                    "tree.child-unknown",
                    place=place(tier, node),
                    tier=tier,
                    node=node,
                    inner=inner,
                    child=child,
                    known=listing(children),
                    suggestion=near,
                )
            if child in parent:
                raise FederationError(
                    "tree.child-repeated",
                    place=place(tier, node),
                    inner=inner,
                    child=child,
                    tier=tier,
                    first=parent[child],
                    second=node,
                )
            parent[child] = node
    return parent


def nvflare_federation(text: str, file: str, default_name: str) -> tuple[Federation, list[str]]:
    """Returns the federation of an NVIDIA FLARE project file, and notes on parents and records that are missing.

    Clients without children are silos; the parents above silos give the tiers "region", "tier-2" and so on. A client
    without a parent reports straight to the server and gets a region of its own, with a name of its own: silo and
    region are two sites. Real project files hold no `records`: if no silo has `records`, all silos count as equal, with
    1 record.
    """
    data, starts = _parse_yaml(text, file)
    people, lines = _participants(data, starts, file)

    def place(name: str) -> str:
        return f"{file} line {lines[name]}"

    parent = {name: _parent_of(name, people, place) for name in people}
    _refuse_cycles(parent, place)
    parents = {above: name for name, above in parent.items() if above is not None}
    for above, name in parents.items():
        if people[above].get("records") is not None:
            raise FederationError("project.parent-has-records", place=place(above), parent=above, child=name)
    silos = [name for name, person in people.items() if person["type"] == "client" and name not in parents]
    if not silos:
        raise FederationError("project.clients-missing", file=file)
    chains = {silo: _chain(silo, parent) for silo in silos}
    nested = [silo for silo in silos if chains[silo]]
    for silo in nested:
        if len(chains[silo]) != len(chains[nested[0]]):
            raise FederationError(
                "project.depth-unequal",
                place=place(silo),
                silo=silo,
                parents=len(chains[silo]),
                other=nested[0],
                other_parents=len(chains[nested[0]]),
            )
    depth = len(chains[nested[0]]) if nested else 1
    unsized = all(people[silo].get("records") is None for silo in silos)
    title = data.get("name")
    own_region = _own_regions([silo for silo in silos if not chains[silo]], people)
    rows = _Rows(
        name=title if isinstance(title, str) and title and title.isprintable() else default_name,
        silo=silos,
        records=[1 if unsized else people[silo].get("records") for silo in silos],
        epsilon=[people[silo].get("epsilon") for silo in silos],
        weight=[people[silo].get("weight") for silo in silos],
        labels={
            "region" if level == 0 else f"tier-{level + 1}": [
                chains[silo][level] if chains[silo] else own_region[silo] for silo in silos
            ]
            for level in range(depth)
        },
        locate=lambda row: place(silos[row]),
    )
    return rows.federation(file), [*_notes_on_regions(own_region, flat=not nested), *_notes_on_records(unsized)]


def _own_regions(silos: Sequence[str], taken: Container[str]) -> dict[str, str]:
    """Returns a region for every silo without a parent, by a name that no participant has.

    >>> _own_regions(["site-1", "site-2"], ["site-1", "site-2", "site-2-region"])
    {'site-1': 'site-1-region', 'site-2': 'site-2-region-2'}
    """
    regions: dict[str, str] = {}
    for silo in silos:
        names = (f"{silo}-region{'' if number == 1 else f'-{number}'}" for number in count(1))
        regions[silo] = next(name for name in names if name not in taken and name not in regions.values())
    return regions


def _notes_on_regions(own_region: Mapping[str, str], *, flat: bool) -> Iterator[str]:
    """Yields a note on clients without a parent, and on two ways to less noise if no client has a parent."""
    if not own_region:
        return
    first, region = next(iter(own_region.items()))
    if not flat:
        yield (
            f"{len(own_region)} of the clients have no parent, so each is the only silo of a region of its own: "
            f"{first!r} in {region!r}. A lone silo gets no help from the noise of others: name a parent"
        )
        return
    yield (
        f"no client has a parent, so every client is the only silo of a region of its own: {first!r} in {region!r}. "
        "This is no topology to gain from: every silo needs the whole noise. Two changes would help: group the "
        "clients, with a relay for each group as their parent, or mask all clients as one group, with --aggregation "
        "masked --epsilon federation=NUMBER"
    )


def _notes_on_records(unsized: bool) -> Iterator[str]:
    """Yields a note if no client has records."""
    if unsized:
        yield (
            "no client has records, so all silos count as equal, with 1 record each. If sizes differ and are public, "
            "add records: NUMBER to each client"
        )


def _parse_yaml(text: str, file: str) -> tuple[dict[Any, Any], list[int]]:
    """Returns the mapping of the file and the line of every participant."""
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("extra.pyyaml-missing") from None
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            data = loader.construct_document(root) if root is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        reason = _one_line(error.problem or error.context)
        raise FederationError("project.yaml-syntax", place=f"{file}{line}", reason=reason) from None
    except yaml.YAMLError as error:
        raise FederationError("project.yaml-syntax", place=file, reason=_one_line(error)) from None
    except RecursionError:
        raise FederationError("federation.nesting-depth", file=file) from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # PyYAML lets these through if a tag and its value disagree, as in !!int "" or the date 2024-13-45.
        raise FederationError("project.yaml-type", place=file, reason=_one_line(error)) from None
    if root is None or not isinstance(data, dict) or not isinstance(data.get("participants"), list):
        keys = [key for key in data if isinstance(key, str)] if isinstance(data, dict) else []
        near = misspelt("participants", keys)
        hint = f" Did you mean {near!r} to be 'participants'?" if near else " Is it an NVFLARE project file?"
        raise FederationError("project.participants-missing", file=file, suggestion=hint)
    [*_, participants] = (value for key, value in root.value if key.value == "participants")
    return data, [item.start_mark.line + 1 for item in participants.value]


def _participants(
    data: Mapping[Any, Any], starts: Sequence[int], file: str
) -> tuple[dict[str, dict[Any, Any]], dict[str, int]]:
    """Returns the participants and the lines of participants, by name."""
    people: dict[str, dict[Any, Any]] = {}
    lines: dict[str, int] = {}
    for person, line in zip(data["participants"], starts, strict=True):
        where = f"{file} line {line}"
        if not isinstance(person, dict):
            raise FederationError("project.participant-type", place=where, kind=_kind(person))
        name = _label(person.get("name"))
        if not name or not name.isprintable():
            raise FederationError("project.participant-name", place=where)
        if name in people:
            raise FederationError("project.participant-repeated", place=where, name=name, line=lines[name])
        for key in person:
            if isinstance(key, str) and (reserved := tree_key_problem(key)):
                raise FederationError("project.key-reserved", place=where, name=name, key=key, reason=reserved)
            if isinstance(key, str) and key not in _PARTICIPANT_KEYS and (near := misspelt(key, _PARTICIPANT_KEYS)):
                raise FederationError("project.key-unknown", place=where, key=key, name=name, suggestion=near)
        kind = person.get("type")
        if not isinstance(kind, str) or kind not in _PARTICIPANT_TYPES:
            near = suggestion(kind, _PARTICIPANT_TYPES) if isinstance(kind, str) else ""
            type_word = repr(kind) if isinstance(kind, str) else _kind(kind)
            raise FederationError(
                "project.type-unknown",
                place=where,
                name=name,
                known=listing(_PARTICIPANT_TYPES),
                type=type_word,
                suggestion=near,
            )
        people[name], lines[name] = person, line
    return people, lines


def _parent_of(name: str, people: Mapping[str, Mapping[Any, Any]], place: Callable[[str], str]) -> str | None:
    """Returns the client or relay above a participant, or None for the server."""
    if people[name].get("parent") is None:
        return None
    parent = _label(people[name]["parent"])
    if parent not in people:
        near = suggestion(parent, people)
        raise FederationError("project.parent-unknown", place=place(name), name=name, parent=parent, suggestion=near)
    kind = people[parent]["type"]
    if kind in ("client", "relay"):
        return parent
    if kind == "server":
        return None
    raise FederationError("project.parent-type", place=place(name), name=name, parent=parent, kind=kind)


def _refuse_cycles(parent: Mapping[str, str | None], place: Callable[[str], str]) -> None:
    checked: set[str] = set()
    for name in parent:
        path: dict[str, None] = {}
        here: str | None = name
        while here is not None and here not in checked:
            if here in path:
                cycle = " -> ".join([*list(path)[list(path).index(here) :][:6], here])
                raise FederationError("project.parent-cycle", place=place(here), cycle=cycle)
            path[here] = None
            here = parent[here]
        checked.update(path)


def _chain(name: str, parent: Mapping[str, str | None]) -> list[str]:
    chain: list[str] = []
    above = parent[name]
    while above is not None:
        chain.append(above)
        above = parent[above]
    return chain


def _label(value: Any) -> str:
    """Returns a name as text; YAML reads the name 17 as a number."""
    if isinstance(value, str):
        return value.strip()
    whole = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64
    return str(value) if whole else ""


def _kind(value: Any) -> str:
    """Returns the type of a value in the words of TOML and YAML: the value itself may be of any length."""
    names = {dict: "a table", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "nothing" if value is None else names.get(type(value), type(value).__name__)


def _one_line(problem: object) -> str:
    return " ".join(str(problem).split())[:200]
