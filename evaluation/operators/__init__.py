"""This folder scores what operators see: programs that hang (`hang_score`), a labelled set (`trace_set`), costs."""
