"""What operators of a Flower federation are told: the README.md of every kit, and of the folder that holds them all."""

from collections.abc import Sequence

_SILO = """# {name}: a silo

This site trains on its own records. What leaves it is one masked vector a round: its update clipped to the plan's norm,
perturbed, charged to its ledger, and masked so that the server learns the sum of its group and nothing finer.

## Before you start

1. Read the plan: `fulcrum verify plan.json` recomputes every number of it. Its digest is
   `{digest}`.
2. Compare the issuer's public key in `site.toml` with the one you know. {keys}
3. Write down what you insist on in `policy.toml`, set `policy = true` in `site.toml`, and check it. From then on this
   site releases nothing without it; with `policy = false` it releases nothing while it is there.
   `fulcrum policy plan.json --silo {name} --policy policy.toml`
4. Set the options of your training module in `site.toml`.
5. Make the records of this silo, once: `fulcrum site init .`
   This kit holds none, and this site does not start without. If the command finds records here, or says that the site
   is initialised, somebody else made what is here, and may know its secrets: ask for another kit.
   Took part before? A silo has one ledger, for life: set `state` in `site.toml` to the folder of yours, and name it:
   `fulcrum site init . --ledger FOLDER/{name}.ledger`

**Flower runs here whatever app the SuperLink sends.** What Fulcrum protects is what that app hands to it: an app with
other code can read this silo's records and send them. Let only people you trust submit runs, or have your SuperNode
admit only apps that they signed (`flower-supernode --trusted-entities`).

## Install

    pip install 'fulcrum-dp[flower,fast]'

{training}
## Start and stop

    ./start.sh

It ends with Ctrl-C. `RUNTIME_PORT` is the port, on this machine alone, that the SuperNode and its app talk over; 9094
by default.

## Keep

`state/{name}.ledger` is what this silo has spent, `state/{name}.masking` which rounds it has unmasked. Keep the folder
whole, with `initialised.json` in it and beside `site.toml`, never restore an old copy of any of them, never run two
copies of this site. `fulcrum ledger verify` checks the ledger. If one of them is lost, what it recorded is spent all
the same: this site releases nothing more, and a new plan must count it.
"""

_SERVER = """# The server

This site runs Flower's SuperLink, keeps the global model, and moves it by the sums of the groups. It sees no silo's own
release.

## Install

    pip install 'fulcrum-dp[flower]'

{training}
## Start and stop

    ./start.sh

It ends with Ctrl-C. `HOST` is the address that it listens on for SuperNodes, every one by default.

**Runs are submitted on this machine alone**, at port {control} (`CONTROL_PORT`). Flower has no accounts: who reaches
that port can have every SuperNode run an app of theirs, which can read the records there. `start.sh` keeps the two
apart. Never open that port to others, and give accounts on this machine only to people whom every silo trusts with its
records.

## Keep

`state/checkpoint.npz` holds the model, `state/attempt.json` which attempt of a round was begun last, `superlink.db` who
is registered. A run that broke off goes on from there when the app is run again; nothing is spent twice.
"""

_ALL = """# Kits of plan {digest}

| folder | for |
|---|---|
| `server` | the server, where Flower's SuperLink runs |
{rows}
| `app`, `ca.crt`, `register.sh`, `run.sh` | whoever runs the plan, on the server's machine |
{issuer}
{warning}
Hand every site its own folder alone, over a channel you trust, and remove it here: `register.sh` needs of every silo
`node.key.pub` alone. Sites need to reach the server at `{address}`; nobody else needs an open port.

1. The server's operator runs `server/start.sh`.
2. On the server's machine: `./register.sh` tells the SuperLink the silos' SuperNodes, once. It admits no others.
3. The silos' operators make their records with `fulcrum site init .`, once, and run `start.sh`.
4. On the server's machine: `./run.sh --stream`. If it breaks off, the same command goes on from the checkpoint.

The SuperLink takes runs at port {control} of its own machine and nowhere else, since whoever submits a run has every
silo's SuperNode run its app. From elsewhere, an account there gives the way:
`ssh -L {control}:127.0.0.1:{control} HOST`.
"""


def silo_readme(name: str, *, digest: str, train: str, keys_made: bool) -> str:
    """Returns what the operator of a silo is told."""
    keys = (
        "The key `site.key` was made where the kits were: whoever made them can act for this site."
        if keys_made
        else "Put the private key whose public half the plan carries into `site.key`."
    )
    return _SILO.format(name=name, digest=digest, keys=keys, training=_training(train))


def server_readme(*, train: str, control: int) -> str:
    """Returns what the operator of the server is told; runs are submitted at the port `control`."""
    return _SERVER.format(training=_training(train), control=control)


def folder_readme(
    silos: Sequence[str], *, digest: str, address: str, control: int, keys_made: bool, issuer_made: bool
) -> str:
    """Returns what whoever made the kits is told; runs are submitted at the port `control`."""
    issuer = "| `issuer.key` | the issuer's private key, made here: keep it to sign the next plan with |\n"
    warning = (
        "Every private key was made here: whoever has held this folder can act for every silo. Where that is too much\n"
        "trust, let silos make their own keys (`fulcrum keygen`) and plan with `--keys`.\n\n"
    )
    return _ALL.format(
        digest=digest,
        rows="\n".join(f"| `{name}` | the silo {name} |" for name in silos),
        issuer=issuer if issuer_made else "",
        warning=warning if keys_made else "",
        address=address,
        control=control,
    )


def _training(train: str) -> str:
    return f"Install the training module `{train}` as well.\n" if train else ""
