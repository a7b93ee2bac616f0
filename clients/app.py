"""The Flower ClientApp of a node: describes its sites, and trains their clients when the server asks.

Flower starts this file: ``flwr run`` for its own simulation, a SuperNode for a deployment. In a simulation every node
holds the whole data set and serves all sites; a deployed node is told its own with ``--node-config 'site="cleveland"'``
and needs only the rows of that site (``data="path/to/table.csv"`` where they are not the scenario's).
"""

from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedDP.scenario.flower_app import app_scenario, with_data
from fedDP.scenario.load_data import load_data
from fedDP.scenario.node import Node

app = ClientApp()


@app.query("describe")
def describe(message: Message, context: Context) -> Message:
    """Names the node's sites and the record counts of their clients; all of it is public."""
    return Message(node_of(context).describe(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains the sampled clients and returns the integer sum of their clipped updates, and nothing else."""
    return Message(node_of(context).train(message.content), reply_to=message)


def node_of(context: Context) -> Node:
    """The node of this process; a process that plays several nodes loads its data once."""
    config = {name: str(value) for name, value in context.run_config.items()}
    return load_node(
        config["scenario"],
        config["set"],
        str(context.node_config.get("data", "")),
        str(context.node_config.get("site", "")),
        "partition-id" in context.node_config,
    )


@lru_cache(maxsize=4)
def load_node(scenario_name: str, overrides: str, data_path: str, site: str, simulated: bool) -> Node:
    """Loads the scenario and the node's own rows."""
    scenario = with_data(app_scenario(scenario_name, overrides), data_path)
    return Node(scenario, load_data(scenario.data).train, sites=[site] if site else None, replica=simulated)
