"""The fault-injection benchmark of the doctor: every fault in a small real training run, beside its healthy twin."""
