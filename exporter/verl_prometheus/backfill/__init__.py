"""Old runs into Prometheus: from the journal, or from what verl's other loggers wrote."""
