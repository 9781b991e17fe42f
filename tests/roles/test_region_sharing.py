"""One region and several threads, forks and kills."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from forking import forks, in_child
from regional import MEMBERS

import fulcrum
from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.core.messages.regional_reply import Withheld


@pytest.fixture
def tmp_path(on_disk):
    """On the disk: in memory a round is closed too quickly to be killed at it."""
    return on_disk


def test_threads_share_a_region(world, region):
    sealed = [(world.sealed(silo, number), number) for number in (1, 2, 3) for silo in MEMBERS]
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda pair: region.accept(*pair), sealed * 4))
        sums = list(pool.map(region.close_round, [1, 2, 3] * 4))
    assert names == list(MEMBERS) * 12
    assert len({total.to_bytes() for total in sums}) == 3


@forks
def test_a_forked_child_sends_nothing(world, region):
    said = in_child(lambda: region.close_round(1))
    assert said.startswith("StorageError: ")
    assert "before a fork" in said
    assert isinstance(region.close_round(1), Withheld)


CLOSE_UNTIL_KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.aggregation.regional_aggregator import Region

path, plan, key, out, kills = sys.argv[1], read_plan(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
draw, inside = random.Random(7), 0
for kill in range(kills):
    receive, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with Region.open(path, plan, "north", key) as region:
            for number in range(1, plan.rounds + 1):
                os.write(tell, b"(")
                data = region.close_round(number).to_bytes()
                with Path(out, f"{kill}-{number}").open("wb") as file:
                    file.write(data)
                os.write(tell, b")")
        os._exit(0)
    os.close(tell)
    for _ in range(2 * kill + 1):
        os.read(receive, 1)
    time.sleep(draw.uniform(0, 0.002))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    inside += not os.read(receive, 10**6).startswith(b")")
    os.close(receive)
print(json.dumps(inside))
"""


@forks
def test_a_process_killed_while_it_closes_leaves_a_sum_whole_or_absent(world, path, tmp_path):
    fulcrum.save_plan(world.plan, tmp_path / "plan.json")
    plan = fulcrum.read_plan(tmp_path / "plan.json")
    expected = {}
    with world.open(path) as region:
        for number in range(1, 7):
            sent = [world.release(silo, number) for silo in MEMBERS]
            for made in sent:
                region.accept(world.seal(made), number)
            expected[number] = sum(made.values for made in sent)
    told = tmp_path / "told"
    told.mkdir()
    arguments = [path, tmp_path / "plan.json", world.folder / "north", told, 5]
    done = subprocess.run(
        [sys.executable, "-c", CLOSE_UNTIL_KILLED, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) >= 1  # the test means something only if kills fell inside `close_round`
    left = list(told.iterdir())
    assert left
    with Region.open(path, plan, "north", world.folder / "north") as region:
        statuses = {row.round_number: row.status for row in region.rounds()}
        assert set(statuses.values()) <= {"summed", "gathering"}
        for file in left:
            number = int(file.name.split("-")[1])
            assert statuses[number] == "summed"
            # The last file of a killed process may be cut short: what left is a part of what is stored.
            assert region.close_round(number).to_bytes().startswith(file.read_bytes())
        for number, values in expected.items():
            assert (region.close_round(number).values == values).all()
