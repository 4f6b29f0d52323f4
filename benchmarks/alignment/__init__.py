"""Objectives of alignment where the optimum is known: every answer is enumerated."""
