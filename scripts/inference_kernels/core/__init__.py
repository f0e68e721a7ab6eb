"""The dataset: files, records, schemas, definitions, workloads, references and their replay; nothing here captures,
judges or publishes.
"""
