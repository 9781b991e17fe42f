"""What operators are told: the README.md of every kit, and of the folder that holds them all."""

from collections.abc import Sequence

from fulcrum.core.silo.site import Role

_INSTALL = """## Install

    pip install 'fulcrum-dp[nvflare,secure,fast]'

{training}Nothing of the job's own code is ever run here: `local/resources.json` admits Fulcrum's components alone, and
the site takes no order of the server but to run that job and to stop it: it hands out no file and no log.
"""

_START = """## Start and stop

    ./start.sh
    ./stop.sh

`start.sh` starts this site again when it dies, unless it dies five times in five minutes. Logs stay here, in
`log.txt`; none is sent anywhere.
"""

_SILO = """# {name}: a silo

This site trains on its own records. What leaves it is one release a round: its update clipped to the plan's norm,
perturbed, charged to its ledger, and sealed so that {region} alone can open it, whoever carries it.

## Before you start

1. Read the plan: `fulcrum verify local/fulcrum/plan.json` recomputes every number of it. Its digest is
   `{digest}`.
2. Compare the issuer's public key in `local/fulcrum/site.toml` with the one you know. {keys}
3. Write down what you insist on in `local/fulcrum/policy.toml`, set `policy = true` in `local/fulcrum/site.toml`, and
   check it. From then on this site releases nothing without it; with `policy = false` it releases nothing while it is
   there.
   `fulcrum policy local/fulcrum/plan.json --silo {name} --policy local/fulcrum/policy.toml`
4. Set the options of your training module in `local/fulcrum/site.toml`.
5. Make the ledger of this silo, once: `fulcrum site init .`
   This kit holds none, and this site does not start without. If the command finds a ledger here, or says that the site
   is initialised, somebody else made what is here: ask for another kit.
   Took part before? A silo has one ledger, for life: set `state` in `local/fulcrum/site.toml` to the folder of yours,
   and name it: `fulcrum site init . --ledger FOLDER/{name}.ledger`

{install}
{start}
## Keep

`local/fulcrum/state/{name}.ledger` is what this silo has spent. Keep the folder whole, with `initialised.json` in it
and beside `site.toml`, never restore an old copy of any file in it, never run two copies of this site.
`fulcrum ledger verify` checks the ledger. If it is lost, what it recorded is spent all the same: this site releases
nothing more, and a new plan must count it.
"""

_REGION = """# {name}: a regional aggregator

This site opens the sealed releases of its silos ({silos}), checks them, and sends up their sum, or word that it
withholds it. It sees every one of their releases: it is the observer that epsilon inside the region is about.

## Before you start

1. Compare the issuer's public key in `local/fulcrum/site.toml` with the one you know. {keys}
2. Make the file of this region's sums, once: `fulcrum site init .`
   This kit holds none, and this site does not start without. If the command finds one here, or says that the site is
   initialised, somebody else made what is here: ask for another kit.

{install}
{start}
## Keep

`local/fulcrum/state/sums.db` holds the one sum of every round. Keep the folder whole while a plan runs, with
`initialised.json` in it and beside `site.toml`, never restore an old copy, never run two copies of this site: two sums
of one round with different members would expose a silo.

## When a round is withheld

A sum goes up only if the noise in it is what the plan counts on: at most {spare} of the silos may be missing.
`log.txt` says who was missing or refused, and why. Withholding costs nothing above this region; the silos stay charged
against whoever runs it, which has seen their releases.
"""

_SERVER = """# The server

This site keeps the global model and adds the regions' sums to it. It carries the silos' sealed releases to their
regions and cannot open them.

{install}
{start}
## Run the plan

From the folder of all kits, with every site started:

    fulcrum follow nvflare . -o run

`run.json`, here and in `run`, has what came of each round. Where the training module has a function `evaluate`, this
site runs it after each round: give it records that are public, never those of a silo, in the options of
`local/fulcrum/site.toml`.

If the job breaks off, the same command goes on from `local/fulcrum/state/checkpoint.npz`. Silos and regions answer a
round they have answered before with the same bytes, so nothing is spent twice. The final model is in that file.
"""

_ALL = """# Kits of plan {digest}

| folder | for |
|---|---|
{rows}
| `admin`, `job` | whoever runs `fulcrum follow nvflare .` |
| `authority` | the federation's certificate authority. Whoever holds it can let anyone in: keep it offline |
{issuer}
{warning}
Hand every site its own folder alone, over a channel you trust, and remove it here. Sites need to reach the server at
`{host}:{port}`; nobody else needs an open port. Before they are started, silos and regions make their records, once:
`fulcrum site init` in their folder. No kit holds any.
"""


def site_readme(
    name: str, role: Role, *, region: str, silos: Sequence[str], spare: int, digest: str, train: str, keys_made: bool
) -> str:
    """Returns what the operator of one site is told."""
    training = f"Install the training module `{train}` as well. " if train else ""
    keys = (
        "The key `local/fulcrum/site.key` was made where the kits were: whoever made them can act for this site."
        if keys_made
        else "Put the private key whose public half the plan carries into `local/fulcrum/site.key`."
    )
    text = {"silo": _SILO, "region": _REGION, "server": _SERVER}[role]
    return text.format(
        name=name,
        region=region,
        silos=", ".join(silos),
        spare=spare,
        digest=digest,
        keys=keys,
        install=_INSTALL.format(training=training),
        start=_START,
    )


def folder_readme(
    sites: Sequence[tuple[str, Role]], *, digest: str, host: str, port: int, keys_made: bool, issuer_made: bool
) -> str:
    """Returns what whoever made the kits is told."""
    issuer = "| `issuer.key` | the issuer's private key, made here: keep it to sign the next plan with |\n"
    warning = (
        "Every private key was made here: whoever has held this folder can read every release. Where that is too much\n"
        "trust, let sites make their own keys (`fulcrum keygen`) and plan with `--keys`.\n\n"
    )
    return _ALL.format(
        digest=digest,
        rows="\n".join(
            f"| `{name}` | the {role} {name} |" if role != "server" else "| `server` | the server |"
            for name, role in sites
        ),
        issuer=issuer if issuer_made else "",
        warning=warning if keys_made else "",
        host=host,
        port=port,
    )
