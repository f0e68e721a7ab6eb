"""Drive a running engine through the requests of a capture; what is recorded there is the business of capture."""
