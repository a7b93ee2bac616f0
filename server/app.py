"""The Flower ServerApp: runs a scenario over the nodes that are connected.

The same strategy as in ``feddp run``: charge, sample, collect integer sums, add the charged noise, step the optimiser.
"""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedDP.reporting.terminal import Terminal, summary_text
from fedDP.scenario.conduct import conduct
from fedDP.scenario.flower_app import app_scenario, held_out
from fedDP.scenario.run_directory import RunDirectory
from fedDP.scenario.summary import make_summary

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Conducts the run and writes its directory."""
    config = {name: str(value) for name, value in context.run_config.items()}
    scenario = app_scenario(config["scenario"], config["set"])
    directory = RunDirectory(Path(config["out"] or RunDirectory.default_path(scenario)), scenario)
    terminal = Terminal(rounds=scenario.server.rounds)
    outcome = conduct(
        scenario,
        grid,
        directory,
        test=held_out(scenario),
        one_row_per_client=scenario.data.client_column is None,
        on_round=terminal.round_finished,
    )
    summary = make_summary(outcome, nodes=len(list(grid.get_node_ids())))
    directory.write_summary(summary)
    print(summary_text(summary, directory.path))
