"""The asynchronous shell: owns tasks, time limits and spans; every choice comes from core."""
