"""The extension, which is optional: without a compiler pip installs the rest, and the recorder in Python runs."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("tape._recorder", ["tape/_recorder.c"], optional=True)])
