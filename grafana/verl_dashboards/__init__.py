"""The dashboards as code. `python -m verl_dashboards DIR` writes one JSON file a board."""
