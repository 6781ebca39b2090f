"""The recipes of docs/launch on a cluster of namespaces, as they are written: the right world, or one line.

`./run test -m cluster`, after `./run setup cluster`. It prints the table of docs/launch/README.md.
"""

import json
import os
import re
import time
from pathlib import Path

import pytest
from cluster import Cluster, missing

DOCS = Path(__file__).resolve().parents[3] / "docs"
RECIPES = [
    line
    for page in sorted((DOCS / "launch").glob("*.md"))
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.S)
    for line in block.strip().splitlines()
]
(PROGRAM,) = (
    text
    for text in re.findall(r"```python\n(.*?)```", (DOCS / "launching.md").read_text(), re.S)
    if "world_size" in text
)
RIGHT = [f"rank {rank} of 4, sum 6" for rank in range(4)]
LINE_S = 5.0
table = []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if why := missing():
        if "cluster" in os.environ.get("LANTERNE_REQUIRE", "").split(","):
            pytest.fail(f"LANTERNE_REQUIRE names cluster, but {why}", pytrace=False)
        pytest.skip(why)
    # A short path: sockets lie there.
    folder = tmp_path_factory.mktemp("c")
    with Cluster(folder) as made:
        (folder / "program.py").write_text(PROGRAM)
        yield made
    print("\n| how | what it gave | after |\n| --- | --- | --- |")
    for how, gave, seconds in table:
        print(f"| `{how}` | {gave} | {seconds:.1f} s |")


def run(cluster, command, **variables):
    """(Standard output's lines, the CompletedProcess, its seconds) of a recipe."""
    started = time.monotonic()
    ended = cluster.run(command, **{"LANTERNE_TRIALS": "off", **variables})
    return sorted(ended.stdout.splitlines()), ended, time.monotonic() - started


def is_right(ranks):
    return sorted(re.findall(r"rank \d of 4, sum 6", ranks)) == RIGHT


@pytest.mark.cluster
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(cluster, recipe):
    (cluster.folder / "batch.out").unlink(missing_ok=True)
    slots = ":2" if "mpiexec" in recipe else " slots=2"
    (cluster.folder / "hosts").write_text("".join(f"{host}{slots}\n" for host in cluster.hosts))
    lines, ended, seconds = run(cluster, recipe)
    if recipe.startswith("sbatch"):
        lines = (cluster.folder / "batch.out").read_text().splitlines()
    table.append((recipe, "a world of 4", seconds))
    assert (ended.returncode, is_right("\n".join(lines))) == (0, True), ended


def start_ranks(cluster, variables_of):
    """The output of four ranks, two on each host, with the variables that `variables_of(rank)` gives."""
    ranks = [
        cluster.start(["python", "program.py"], rank // 2, LANTERNE_TRIALS="off", **variables_of(rank))
        for rank in range(4)
    ]
    return [rank.communicate(timeout=60) for rank in ranks]


@pytest.mark.cluster
def test_torchruns_variables(cluster):
    started = time.monotonic()
    told = start_ranks(
        cluster,
        lambda rank: {
            **{"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            **{"MASTER_ADDR": cluster.hosts[0], "MASTER_PORT": "29500", "GROUP_RANK": str(rank // 2)},
            **{"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True", "LANTERNE_TOKEN": "s" * 32},
        },
    )
    table.append(("torchrun's variables", "a world of 4", time.monotonic() - started))
    assert is_right("".join(output for output, _ in told)), told


@pytest.mark.cluster
def test_an_indexed_job(cluster):
    (job,) = (item for item in json.loads((DOCS / "launch/job.json").read_text())["items"] if item["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value", "t" * 32) for each in container["env"]}
    variables["MASTER_ADDR"] = cluster.hosts[0]  # no DNS of Kubernetes here
    started = time.monotonic()
    told = start_ranks(cluster, lambda rank: {"JOB_COMPLETION_INDEX": str(rank), **variables})
    table.append(("an Indexed Job's variables", "a world of 4", time.monotonic() - started))
    assert is_right("".join(output for output, _ in told)), told


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("recipe", "variables", "line"),
    [
        ("srun -n 2 env -u SLURM_JOB_ID -u SLURM_JOBID python program.py", {}, "SLURM_JOB_ID: not set beside"),
        ("srun --mpi=pmi2 -n 2 env -u PMI_SIZE python program.py", {}, "PMI_SIZE: not set beside PMI_RANK="),
        (
            "mpirun -n 2 --oversubscribe python program.py",
            {"RANK": "0", "WORLD_SIZE": "7", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
            "two launchers: got OMPI_COMM_WORLD_RANK=",
        ),
        (
            "srun -n 2 -N 2 python program.py",
            {"LANTERNE_CACHE": "off"},
            "LANTERNE_TOKEN: not set, and no folder to keep a key in",
        ),
        (
            "srun -n 2 -N 2 sh -c 'LANTERNE_CACHE=cache-$SLURM_PROCID exec python program.py'",
            {},
            "refuses our job token; expected LANTERNE_TOKEN to be the same on all ranks",
        ),
        (
            "python program.py",
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "nobody", "MASTER_PORT": "1"},
            "MASTER_ADDR: got 'nobody', which has no address",
        ),
    ],
)
def test_one_line(cluster, recipe, variables, line):
    _, ended, seconds = run(cluster, recipe, LANTERNE_TIMEOUT_S="4", **variables)
    ours = [text for text in ended.stderr.splitlines() if "lanterne" in text]
    assert ended.returncode != 0 and "Traceback" not in ended.stderr, ended
    assert any(line in text for text in ours), ended
    table.append((recipe, f"`{line}...`", seconds))


@pytest.mark.cluster
def test_a_batch_script_alone_says_so(cluster):
    _, ended, _ = run(cluster, 'sbatch --wait -n 2 -o alone.out --wrap "python program.py"')
    text = (cluster.folder / "alone.out").read_text()
    assert ended.returncode == 0 and "rank 0 of 1" in text and "no task of the 2; `srun`" in text


@pytest.mark.cluster
def test_mpi_ranks_of_hosts_without_a_common_loopback(cluster):
    """As containers with one IPC namespace: their boot and shared memory are the same, their networks are not."""
    code = (
        "import lanterne, os; c = lanterne.init(); t = c.transport\n"
        "os.write(1, f'{len(set(t._job.hosts))} {t.store.address[0]}\\n'.encode()); c.close()"
    )
    (cluster.folder / "hosts").write_text("".join(f"{host}:1\n" for host in cluster.hosts))
    (cluster.folder / "hosts.py").write_text(code)
    _, ended, _ = run(cluster, "mpiexec -f hosts -n 2 python hosts.py")
    assert len(re.findall(r"^2 10\.77\.0\.\d$", ended.stdout, re.M)) == 2, ended


SCHEMA = Path(__file__).with_name("manifest.schema.json")


def test_the_manifest():
    from jsonschema import Draft202012Validator

    schema = json.loads(SCHEMA.read_text())
    manifest = json.loads((DOCS / "launch/job.json").read_text())
    validator = Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(manifest)] == []
    job = next(item for item in manifest["items"] if item["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert values["WORLD_SIZE"] == str(job["spec"]["completions"]) == str(job["spec"]["parallelism"])
    assert values["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{job['spec']['template']['spec']['subdomain']}"
    # What the schema is for.
    job["spec"]["completion"] = job["spec"].pop("completions")
    assert list(validator.iter_errors(manifest))
