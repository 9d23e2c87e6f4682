"""What several tests need: real servers and real runs."""
