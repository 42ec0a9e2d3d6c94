"""`python -m planner`, where the script `planner` is not on the path."""

from planner.cli.main import run

if __name__ == "__main__":
    run()
