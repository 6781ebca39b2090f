"""This folder holds `lanterne demo`, which nobody else imports.

`command` starts the ranks; `blows` trains them twice, one job left alone, sums up what happened, and draws it.
"""
