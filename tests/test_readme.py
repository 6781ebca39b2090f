"""The Python of README and docs runs as printed; their commands, links and sample files exist; one is a screen."""

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path

import pytest

from lanterne.bench import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page.name: page.read_text() for page in PAGES}
GPU_CLAIMS = (ROOT / "evaluation/results/gpu.md").read_text()
# Each once, in order: pages repeat some.
SNIPPETS = list(
    dict.fromkeys(text for page in TEXTS.values() for text in re.findall(r"```python\n(.*?)```", page, re.S))
)
COMMANDS = list(
    dict.fromkeys(
        line.split("#")[0].strip()
        for page in TEXTS.values()
        for block in re.findall(r"```sh\n(.*?)```", page, re.S)
        for line in block.replace("\\\n", " ").splitlines()
    )
)
# Of claims about GPUs, what measures them stands in the line.
CLAIMED = list(dict.fromkeys(re.findall(r"`((?:\w+=\S+ )?(?:\./run|python3 -m) [^`]+)`", GPU_CLAIMS)))
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("launcher", [(), (MPIEXEC, "-n", "2")], ids=["alone", "mpiexec"])
@pytest.mark.parametrize("index", range(len(SNIPPETS)))
def test_snippets(tmp_path, index, launcher):
    program = tmp_path / "snippet.py"
    program.write_text(SNIPPETS[index])
    result = run(*launcher, sys.executable, str(program))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", [*COMMANDS, *CLAIMED])
def test_commands_exist_and_their_options_parse(command):
    words = list(dropwhile(lambda word: re.match(r"[A-Z_]+=", word), shlex.split(command.split(" | ")[0])))
    if words[0] == "./run" and words[1] in ("test", "docs", "figures"):
        paths = [word for word in words if word.startswith("tests/")]
        assert [path for path in paths if not (ROOT / path).exists()] == []
        return
    if words[1:2] == ["-m"]:
        assert find_spec(words[2]), command
        return
    words = words[words.index("lanterne") + 1 :] if "lanterne" in words else words[1:]
    line = cli.LANTERNE
    if "evaluate" in words:
        evaluation = pytest.importorskip("evaluation.__main__", reason="an sdist leaves it out")
        line, words = evaluation.EVALUATE, words[words.index("evaluate") + 1 :]
        if "." in words[0] or words[0].endswith("_score") or words[0] == "first_screen":
            assert find_spec(f"evaluation.{words[0]}"), command
            return
    if words == ["--help"]:
        return
    name, rest = line.find_command(words)
    assert name is not None, command
    line.build_parser(name).parse_args(rest)


def test_the_readme_is_one_screen():
    text = TEXTS["README.md"]
    assert len(text.encode()) <= 6000 and len(text.split()) <= 900
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_evidence_of_claims_about_gpus_exists():
    paths = set(re.findall(r"(?:tests|evaluation|kernels)/[\w/]+\.(?:py|md)", GPU_CLAIMS))
    assert len(paths) > 5 and sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_the_readme_leads_to_every_page():
    linked = set(re.findall(r"\]\(docs/([^)]+\.md)\)", TEXTS["README.md"]))
    assert linked == {page.name for page in PAGES[1:]}


def test_docs_lead_to_every_example():
    text = "".join(TEXTS.values())
    missing = [path.name for path in (ROOT / "examples").iterdir() if f"examples/{path.name}" not in text]
    assert not [name for name in missing if not name.startswith("__")]


@pytest.mark.parametrize("command", [command for command in COMMANDS if "examples/" in command])
def test_sample_files_are_there(command):
    assert all((ROOT / word).exists() for word in shlex.split(command) if word.startswith("examples/")), command
