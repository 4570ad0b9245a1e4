"""`stayfast schema`: what a settings file may say, for editors and for people."""

import argparse
import json
import sys

from stayfast.lab.simulated.settings import KINDS
from stayfast.settings.schema import json_schema, markdown


def run(arguments: argparse.Namespace) -> int:
    """Print the JSON Schema (draft 2020-12), or the reference page."""
    sys.stdout.write(markdown(KINDS) if arguments.markdown else json.dumps(json_schema(KINDS), indent=2) + "\n")
    return 0
