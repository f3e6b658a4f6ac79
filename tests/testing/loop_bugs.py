"""The loops with one bug each, which an experiment judges, too."""

from experiments.bugs.loops import BUGS as BUGS
