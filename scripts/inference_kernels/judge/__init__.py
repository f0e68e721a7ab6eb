"""Judge and time a candidate, seen from the judge's process; no module here runs inside a candidate's."""
