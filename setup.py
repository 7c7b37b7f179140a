"""The extension, which is optional: without a compiler pip installs the rest, and the recorder in Python runs.

``TAPE_RECORDER=python`` leaves it out, so that the wheel is one for every platform.
"""

import os

from setuptools import Extension, setup

extension = Extension("tape._recorder", ["tape/_recorder.c"], optional=True)
setup(ext_modules=[] if os.environ.get("TAPE_RECORDER") == "python" else [extension])
