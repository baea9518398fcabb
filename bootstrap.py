#!/usr/bin/env python3
"""Makes `.venv` and installs Bulkhead into it: what `make dev` and `make test` do first.

Written for any Python, so that one that is too old gets a sentence instead of a syntax error.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(HERE, ".venv")
OLDEST = (3, 11)
EXTRAS = {"dev": "", "test": "torch,test"}  # the tests hold the native kernels against torch's
CANDIDATES = ["python3.13", "python3.12", "python3.11", "python3.14"]
COMPILERS = ["c++", "g++", "clang++"]
NATIVE = os.path.join(HERE, "engines", "_native*.so")
WITHOUT_NATIVE = "The native kernels aren't built, since %s; torch computes, several times slower."


def main(purpose):
    python = find_python()
    stamp = os.path.join(VENV, ".installed-" + purpose)
    wanted = digest()
    if read(stamp) == wanted and os.path.exists(venv_python()):
        return
    if not os.path.exists(venv_python()):
        make_venv(python)
    remove_native()  # if the build fails now, an older one isn't taken for it
    install(EXTRAS[purpose])
    if not is_native_built():
        say(WITHOUT_NATIVE % why_not_built())
        if "torch" not in EXTRAS[purpose]:
            install("torch")
    for name in EXTRAS if purpose == "test" else [purpose]:  # the tests' extras hold the others
        with open(os.path.join(VENV, ".installed-" + name), "w") as file:
            file.write(wanted)
    if purpose == "dev":
        say("Next, `bulkhead dev` fetches the model, once (93 MB), and serves it.")


def find_python():
    """This Python if it's new enough, else another on the PATH."""
    if sys.version_info >= OLDEST:
        return sys.executable
    for name in CANDIDATES:
        path = shutil.which(name)
        if path and subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            return path
    found = ".".join(str(part) for part in sys.version_info[:3])
    fail("Bulkhead needs Python 3.11 or newer, and this is %s: install a newer one." % found)


def make_venv(python):
    say("Making .venv with %s" % python)
    if subprocess.call([python, "-m", "venv", VENV]) != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        fail("A virtual environment can't be made: install the venv module of %s." % python)


def install(extras):
    """pip, with its own output kept for the case that it fails."""
    what = "Bulkhead's packages" + " (%s)" % extras * bool(extras)
    say("Installing %s; the first time this takes some minutes" % what)
    log_path = os.path.join(VENV, "install.log")
    pip = [venv_python(), "-m", "pip", "install", "-v", "--disable-pip-version-check"]
    target = HERE + "[%s]" % extras * bool(extras)
    with open(log_path, "w") as log:
        code = logged(pip + ["-e", target], log)
    if code == 0:
        say("The packages are installed.")
        return
    log = read(log_path)
    if any(sign in log for sign in NO_NETWORK):
        fail("The packages can't be downloaded: no package index answers; connect and try again.")
    sys.stderr.write(log[-2000:])
    fail("The installation failed; the end of its log stands above, all of it in %s." % log_path)


def logged(command, log):
    """Run it with its output in `log`, telling of each step. Returns its exit status."""
    pip = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
    )
    for line in pip.stdout:
        log.write(line)
        told = step(line)
        if told:
            say("  " + told)
    return pip.wait()


def step(line):
    """What pip does now, for people; "" for a line that tells of no step."""
    if line.startswith(UNPACKING):  # an indented one tells of what the build needs
        return "unpacking %d packages, which takes the longest" % (line.count(",") + 1)
    line = line.strip()
    if line.startswith(COMPILING):
        return "compiling the native kernels, which takes a minute or two"
    if line.startswith("Downloading ") and ".metadata" not in line:
        file, _, size = line[len("Downloading ") :].partition(" (")
        parts = file.split("/")[-1].split("-")  # NAME-VERSION-… of a wheel
        return " ".join(["downloading"] + parts[:2] + ["(" + size] * bool(size))
    return ""


UNPACKING = "Installing collected packages:"
COMPILING = "*** Building project with"
NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "Connection refused",
    "ConnectTimeoutError",
    "ProxyError",
    "(from versions: none)",  # what pip says of an index that does not answer
)


def venv_python():
    return os.path.join(VENV, "bin", "python")


def digest():
    """Changes whenever what must be installed does, and when there is another compiler."""
    built_from = ["pyproject.toml", "CMakeLists.txt"]
    built_from += sorted(glob.glob(os.path.join(HERE, "engines", "native", "*")))
    found = hashlib.sha256((HERE + str(compiler())).encode())
    for name in built_from:
        with open(os.path.join(HERE, name), "rb") as file:
            found.update(os.path.basename(name).encode() + file.read())
    return found.hexdigest()


def compiler():
    """The C++ compiler that CMake would take, or None."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    found = [shutil.which(name) for name in names]
    return next((path for path in found if path), None)


def is_native_built():
    """Whether this Python can load it, too."""
    code = "import sys; from engines.kernels.native import HAS_MODEL; sys.exit(not HAS_MODEL)"
    return subprocess.call([venv_python(), "-c", code], cwd=HERE, stderr=subprocess.DEVNULL) == 0


def why_not_built():
    if compiler() is None:
        return "no C++ compiler was found: install g++ and run this again"
    return "their build failed (.venv/install.log says why; then `make clean`, and this again)"


def remove_native():
    for path in glob.glob(NATIVE):
        os.remove(path)


def read(path):
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read().strip()


def say(text):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def fail(text):
    say(text)
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
