"""Child processes, signals and threads of planner itself."""
