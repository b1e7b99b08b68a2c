"""Measures the machine it runs on: what the processes of ``shardwise calibrate`` do."""
