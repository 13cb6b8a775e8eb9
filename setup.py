"""The description that an index shows. All else is in setup.cfg."""

import re
from pathlib import Path

from setuptools import setup

TEXT = Path(__file__).with_name("README.md").read_text()
# README's links lead to files beside it. An index has none of them: pictures go, and a link becomes its words.
TEXT = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", TEXT)
TEXT = re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", TEXT)

setup(long_description=TEXT)
