"""GPUs of one node: what a reading is, who reads it, how the samples are kept and served."""

BACKENDS = ("nvml", "simulated")
MIN_INTERVAL = 0.1  # seconds between samples
