"""Moved to doppler.search."""

from doppler.search import NOTHING as NOTHING
from doppler.search import BestSoFar as BestSoFar
from doppler.search import Found as Found
