"""The offline package: what is in it, how it is built byte for byte the same, and how it is checked.

Contract: the zip is a function of one commit, one version and one date. It holds the lab and the built manual, never
upstream's source, weights, or anything that names the machine it was made on. Nothing here runs an engine.
"""
