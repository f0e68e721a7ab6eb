"""Drive a running engine through the requests of a capture; how calls are recorded is in capture and models."""
