"""The command in a process of its own: `python -I -S _child.py VERB`.

No package and no site is imported: the extension lies beside this file, and is all that is wanted.
"""

import signal
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from os.path import dirname, exists, join

NAME = "_twostroke"

path = next(path for path in (join(dirname(__file__), NAME + suffix) for suffix in EXTENSION_SUFFIXES) if exists(path))
loader = ExtensionFileLoader(NAME, path)
extension = loader.create_module(ModuleSpec(NAME, loader, origin=path))
loader.exec_module(extension)
extension.started_by([sys.executable, "-I", "-S", __file__])
# As in __main__.py.
signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.exit(extension.main(sys.argv[1:]))
