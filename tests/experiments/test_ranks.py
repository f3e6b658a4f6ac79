"""What it costs two ranks to agree was timed in each round."""

from figures import results


def test_the_times_are_of_every_round() -> None:
    run = results.load("ranks")
    for times in run.records[0]["microseconds"]:
        assert {len(rounds) for rounds in times.values()} == {run.config["steps"]}
