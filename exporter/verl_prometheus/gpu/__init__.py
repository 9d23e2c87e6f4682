"""GPUs of one node: what a reading is, who reads it, how the samples are kept."""
