"""A tuned model on records, before and after: given answers scored, or the models' own drawn and rewarded."""
