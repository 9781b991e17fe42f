"""The stages of a run on NVIDIA FLARE, from the logs of the sites; tests/engines/test_up.py runs real sites."""

from fulcrum.engines.masked_stages import STAGE_WORDS, stage_in_words
from fulcrum.engines.nvflare.kits.flare_progress import FlareProgress

BEGUN = "FederationController - INFO - [run=1] - Round {} started.\n"
SENT = "Communicator - INFO - SubmitUpdate to: north. size: 1.6KB (1640 Bytes). time: 0.1 seconds\n"


def log(folder, name, text):
    (folder / name).mkdir(exist_ok=True)
    with (folder / name / "output.log").open("a") as file:
        file.write(text)


def test_each_stage_is_shown_once_with_the_time_left_after_the_first_round(tmp_path):
    steps = []
    progress = FlareProgress(tmp_path / "server", [tmp_path / "a", tmp_path / "b"], 3, steps.append)
    progress.look()
    assert steps == []  # no site has a log yet
    log(tmp_path, "server", "starting\n" + BEGUN.format(0)[:-4])
    progress.look()
    assert steps == []  # the line is not whole yet
    log(tmp_path, "server", BEGUN.format(0)[-4:])
    progress.look()
    progress.look()
    assert steps == ["round 1 of 3, stage 1 of 2: silos train and release"]
    log(tmp_path, "a", SENT)
    progress.look()
    assert len(steps) == 1
    log(tmp_path, "b", SENT)
    progress.look()
    assert steps[1:] == ["round 1 of 3, stage 2 of 2: regions sum"]
    progress.hear()
    log(tmp_path, "server", BEGUN.format(1))
    progress.look()
    assert steps[2].startswith("round 2 of 3, stage 1 of 2: silos train and release (about ")


def test_another_job_continues_with_the_rounds_of_the_plan(tmp_path):
    steps = []
    progress = FlareProgress(tmp_path / "server", [tmp_path / "a"], 9, steps.append)
    for number in (0, 1):
        log(tmp_path, "server", BEGUN.format(number))
        progress.look()
        progress.hear()
    log(tmp_path, "server", BEGUN.format(0))
    progress.look()
    assert [step.partition(",")[0] for step in steps] == ["round 1 of 9", "round 2 of 9", "round 3 of 9"]


def test_a_stage_of_a_round_that_was_reported_before_is_not_shown(tmp_path):
    steps = []
    progress = FlareProgress(tmp_path / "server", [tmp_path / "a"], 2, steps.append)
    log(tmp_path, "server", BEGUN.format(0))
    progress.look()
    log(tmp_path, "a", SENT)
    progress.hear()
    progress.look()
    assert steps == ["round 1 of 2, stage 1 of 2: silos train and release"]


def test_the_five_stages_of_a_masked_round_are_shown_as_the_server_logs_them(tmp_path):
    steps = []
    progress = FlareProgress(tmp_path / "server", [tmp_path / "a"], 2, steps.append)
    lines = [f"fulcrum stage: round 1, {stage_in_words(stage)}.\n" for stage in STAGE_WORDS]
    log(tmp_path, "server", lines[0] + lines[1])
    log(tmp_path, "a", SENT)
    progress.look()
    progress.look()
    assert steps == ["round 1 of 2, stage 1 of 5: silos make keys", "round 1 of 2, stage 2 of 5: silos share keys"]
    log(tmp_path, "server", lines[2] + lines[3])
    progress.look()
    assert steps[2:] == [
        "round 1 of 2, stage 3 of 5: silos train and release",
        "round 1 of 2, stage 4 of 5: silos attest the members of the sum",
    ]
    progress.hear()
    log(tmp_path, "server", lines[4] + lines[0].replace("round 1", "round 2"))
    progress.look()
    assert len(steps) == 5  # the last stage of round 1 came with the report of the round
    assert steps[4].startswith("round 2 of 2, stage 1 of 5: silos make keys (about ")
