"""elbowroom: training that does not fit in memory, made to fit."""
