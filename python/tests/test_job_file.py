"""`phalanx submit`: what becomes of a job file and flags, and what is said of the rest, before anything starts."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from phalanx.submit import command
from phalanx.submit.packages import for_spark
from support.programs import eventually

pytestmark = pytest.mark.timeout(60)

JOB = """
jobId: digits
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-8
  workerType: n1-standard-4
  workerCount: 3
  masterConfig:
    imageUri: registry/trainer:1
  pythonModule: trainer.task
  args: ["--epochs", 3]
  jobDir: gs://bucket/out
  region: us-central1
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def dry(capsys: Any, *argv: object) -> tuple[int, list[str], str]:
    """The exit code, the command that would run, and what was said."""
    code = command.main([*map(str, argv), "--dry-run"] if "--" not in argv else _before_dashes(argv))
    said = capsys.readouterr()
    return code, shlex.split(said.out), said.err


def _before_dashes(argv: tuple[object, ...]) -> list[str]:
    words = [str(word) for word in argv]
    at = words.index("--")
    return [*words[:at], "--dry-run", *words[at:]]


def settings(words: list[str]) -> dict[str, str]:
    return dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--conf")


def refusal(capsys: Any, *argv: object) -> str:
    code, words, said = dry(capsys, *argv)
    assert (code, words) == (2, [])
    return said


def test_a_job_file_becomes_a_command_of_spark(capsys: Any, job_file: Path) -> None:
    code, words, said = dry(
        capsys, job_file, "--spark-master", "k8s://https://host:6443", "--", "--lr=0.1", "a b"
    )
    conf = settings(words)
    assert code == 0
    assert words[1:5] == ["--master", "k8s://https://host:6443", "--name", "digits"]
    assert words[-9:] == [
        "4",
        "cpu",
        "trainer.task",
        "--job-dir",
        "gs://bucket/out",
        "--epochs",
        "3",
        "--lr=0.1",
        "a b",
    ]
    # The driver is here and has no image. The larger machine is everyone's.
    assert "spark.kubernetes.driver.container.image" not in conf
    assert conf["spark.kubernetes.executor.container.image"] == "registry/trainer:1"
    assert (conf["spark.executor.cores"], conf["spark.task.cpus"], conf["spark.executor.instances"]) == (
        "8",
        "8",
        "4",
    )
    assert conf["spark.executor.memoryOverhead"] == "26624m"
    assert conf["spark.plugins"] == "dev.phalanx.spark.PhalanxPlugin"
    assert "region: ranks run where the Spark cluster is" in said, "LAUNCH-7, LAUNCH-9"
    assert "masterType and workerType differ" in said, "LAUNCH-7"


def test_flags_come_before_the_file(capsys: Any, job_file: Path) -> None:
    _, words, said = dry(
        capsys, "another", "--config", job_file, "--spark-master", "k8s://h", "--worker-count", "1",
        "--worker-image-uri", "registry/worker:2", "--module-name", "trainer.other",
        "--master-accelerator", "count=2,type=nvidia-tesla-t4", "--conf", "spark.plugins=org.Own",
    )  # fmt: skip
    conf = settings(words)
    assert words[words.index("--name") + 1] == "another"
    assert words[words.index("trainer.other") - 2 : words.index("trainer.other") + 1] == [
        "2",
        "gpu",
        "trainer.other",
    ]
    assert conf["spark.kubernetes.executor.container.image"] == "registry/worker:2"
    assert conf["spark.task.resource.gpu.amount"] == "1"
    assert conf["spark.plugins"] == "dev.phalanx.spark.PhalanxPlugin,org.Own"
    assert "a rank has one GPU of its machine's 2" in said
    assert "executors are equal, and rank 0 is in one: it has the workers' image" in said


def test_the_driver_is_this_python_unless_the_user_says_another(capsys: Any) -> None:
    flags = ("name", "--spark-master", "spark://h:1", "--module-name", "m")
    _, words, _ = dry(capsys, *flags, "--conf", "spark.pyspark.python=./environment/bin/python")
    assert settings(words)["spark.pyspark.driver.python"] == sys.executable
    _, words, _ = dry(capsys, *flags, "--conf", "spark.pyspark.driver.python=/own/python")
    assert settings(words)["spark.pyspark.driver.python"] == "/own/python"


def test_executors_are_as_many_as_ranks_and_stay(capsys: Any) -> None:
    flags = ("name", "--spark-master", "yarn", "--module-name", "m", "--worker-count", "2")
    conf = settings(dry(capsys, *flags)[1])
    assert (conf["spark.dynamicAllocation.enabled"], conf["spark.executor.instances"]) == ("false", "3"), (
        "LAUNCH-11: what the platform has as its default would let Spark refuse the run"
    )
    more = ("--conf", "spark.dynamicAllocation.enabled=true", "--conf", "spark.executor.instances=5")
    conf = settings(dry(capsys, *flags, *more)[1])
    assert (conf["spark.dynamicAllocation.enabled"], conf["spark.executor.instances"]) == ("true", "5")
    alone = ("name", "--spark-master", "spark://h:7077", "--module-name", "m")
    assert "spark.executor.instances" not in settings(dry(capsys, *alone)[1]), "its cores are the limit"


def test_what_can_not_be_is_refused_in_a_sentence(capsys: Any, job_file: Path, tmp_path: Path) -> None:
    assert "imageUri registry/trainer:1 needs a Spark master on Kubernetes" in refusal(
        capsys, job_file, "--spark-master", "spark://h:7077"
    )
    flags = ("name", "--spark-master", "spark://h:7077")
    assert "the job has no pythonModule (--module-name)" in refusal(capsys, *flags)
    module = (*flags, "--module-name", "m")
    assert "unknown machine type x9" in refusal(capsys, *module, "--master-machine-type", "x9")
    assert "scaleTier STANDARD_1 is not supported" in refusal(capsys, *module, "--scale-tier", "STANDARD_1")
    assert "scaleTier BASIC is one machine" in refusal(
        capsys, *module, "--scale-tier", "BASIC", "--worker-count", "1"
    )
    assert "workerCount is '-1'" in refusal(capsys, *module, "--worker-count=-1")
    assert "there is no package none.whl" in refusal(capsys, *module, "--packages", "none.whl")
    assert "Spark can't ship gs://b/t.tar.gz" in refusal(capsys, *module, "--packages", "gs://b/t.tar.gz")
    assert "runs the driver on this host" in refusal(
        capsys, *module, "--conf", "spark.submit.deployMode=cluster"
    )
    built = "https://host/trainer-0.1-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert "is built for manylinux_2_28_x86_64" in refusal(capsys, *module, "--packages", built)
    (tmp_path / "torn.whl").write_bytes(b"PK")
    (tmp_path / "torn.tar.gz").write_bytes(b"PK")
    assert "torn.tar.gz is not a tar archive" in refusal(
        capsys, *module, "--packages", tmp_path / "torn.tar.gz"
    )
    assert "torn.whl is not an archive" in refusal(capsys, *module, "--packages", tmp_path / "torn.whl")
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"trainingInput": {"pythonModule": "m", "workerCuont": 2}}))
    assert "unknown fields: workerCuont" in refusal(capsys, other, "--spark-master", "local[2]")
    assert "No such file" in refusal(capsys, tmp_path / "none.yaml", "--spark-master", "local[2]")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("args: --lr=0.1", "args is '--lr=0.1'; it has to be a list"),
        (
            "args: [--since, 2024-01-01]",
            "args has datetime.date(2024, 1, 1), which is neither text nor a number",
        ),
        ("args: [--fast, true]", "args has True, which is neither text nor a number"),
        ("args: [--name, null]", "args has None, which is neither text nor a number"),
        ("packageUris: gs://b/t.whl", "packageUris is 'gs://b/t.whl'; it has to be a list"),
        ("jobDir: [gs://b]", "jobDir has ['gs://b'], which is neither text nor a number"),
        ("masterType: {cores: 8}", "masterType has {'cores': 8}, which is neither text nor a number"),
        ("scaleTier: [BASIC]", "scaleTier has ['BASIC'], which is neither text nor a number"),
        ("workerCount: 2.7", "workerCount is 2.7; it has to be a whole number"),
        ("workerCount: true", "workerCount is True; it has to be a whole number"),
        ("masterConfig: X", "masterConfig is 'X'; it has to be a mapping of fields"),
        (
            "masterConfig: {acceleratorConfig: X}",
            "masterConfig.acceleratorConfig is 'X'; it has to be a mapping of fields",
        ),
        (
            "masterConfig: {acceleratorConfig: {cuont: 1}}",
            "acceleratorConfig has unknown fields: cuont",
        ),
        ("masterConfig: {acceleratorConfig: {type: T4}}", "masterConfig.acceleratorConfig has no count"),
        ("workerConfig: {acceleratorConfig: {count: x}}", "workerConfig.acceleratorConfig.count is 'x'"),
        ("workerConfig: {imageUrl: x}", "workerConfig has unknown fields: imageUrl"),
        ("scaleTier: BASIC\n  masterConfig: {acceleratorConfig: {count: 1}}", "accelerators need CUSTOM"),
        ("2: 3", "trainingInput has unknown fields: 2"),
    ],
)
def test_a_field_that_is_something_else_is_refused(
    capsys: Any, tmp_path: Path, fields: str, said: str
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"trainingInput:\n  pythonModule: m\n  {fields}\n")
    assert said in refusal(capsys, job, "--spark-master", "k8s://h"), "LAUNCH-9"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("job.json", '{"jobId": ', "job.json is not valid JSON"),
        ("job.yaml", "jobId: [", "job.yaml is not valid YAML"),
        ("job.yaml", "since: 2024-13-45", "job.yaml is not valid YAML"),
        ("job.yaml", "caf\xe9", "job.yaml is not a text file"),
        ("job.yaml", "", "job.yaml has to be a mapping of fields"),
        ("job.yaml", "trainingInput: X", "trainingInput is 'X'; it has to be a mapping of fields"),
        ("job.yaml", "1: 2\nx: 3", "the job has unknown fields: 1, x"),
        ("job.yaml", "jobId: 2024-01-01", "jobId has datetime.date(2024, 1, 1)"),
    ],
)
def test_a_file_that_is_something_else_is_named(
    capsys: Any, tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    flags = ("--spark-master", "k8s://h", "--module-name", "m")
    assert said in refusal(capsys, tmp_path / name, *flags)


def test_a_file_that_a_flag_names_is_always_opened(capsys: Any, job_file: Path, tmp_path: Path) -> None:
    flags = ("--spark-master", "k8s://h", "--module-name", "m")
    assert "No such file" in refusal(capsys, "name", *flags, "--config", tmp_path / "job")
    assert "No such file" in refusal(capsys, "name", *flags, "--machine-types", tmp_path / "machines")
    assert "there are two job files" in refusal(capsys, job_file, *flags, "--config", job_file)


def test_a_field_without_a_value_is_not_there(capsys: Any, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    flags = (job, "--spark-master", "k8s://h", "--module-name", "m", "--master-image-uri", "registry/t:1")
    job.write_text("jobId:\ntrainingInput:\n")
    assert settings(dry(capsys, *flags)[1])["spark.kubernetes.executor.container.image"] == "registry/t:1"
    job.write_text("trainingInput:\n  args:\n  masterConfig:\n  workerConfig:\n    imageUri:\n")
    code, words, _ = dry(capsys, *flags)
    assert settings(words)["spark.kubernetes.executor.container.image"] == "registry/t:1"
    assert (code, words[-4:]) == (0, ["job", "1", "cpu", "m"])


def test_what_nobody_would_have_is_said(capsys: Any, tmp_path: Path) -> None:
    flags = ("name", "--spark-master", "k8s://h", "--module-name", "m", "--master-image-uri", "registry/m:1")
    _, words, said = dry(
        capsys, *flags, "--worker-machine-type", "n1-standard-4", "--worker-image-uri", "registry/w:1",
        "--packages", "gs://b/t.whl", "--master-accelerator", "type=nvidia-tesla-t4",
    )  # fmt: skip
    for note in (
        "workerType: workerCount is 0",
        "workerConfig: workerCount is 0",
        "masterConfig.acceleratorConfig.type: the GPUs are the cluster's",
        "packageUris: packages are shipped, not installed",
    ):
        assert note in said, "LAUNCH-9"
    assert settings(words)["spark.kubernetes.executor.container.image"] == "registry/m:1"
    assert words[-3:] == ["1", "gpu", "m"], "one accelerator, as gcloud takes it"
    _, _, said = dry(capsys, *flags, "--worker-count", "1", "--master-machine-type", "n1-standard-4")
    assert "masterType and workerType differ" in said


# The flags of https://cloud.google.com/sdk/gcloud/reference/ai-platform/jobs/submit/training that changes nothing here.
FLAGS = {
    "--enable-web-access": "executors have no shell",
    "--labels=team=vision": "a Spark application has a name only",
    "--parameter-server-accelerator=count=1,type=x": "PyTorch has no parameter servers",
    "--parameter-server-image-uri=x": "PyTorch has no parameter servers",
    "--parameter-server-count=2": "PyTorch has no parameter servers",
    "--parameter-server-machine-type=x": "PyTorch has no parameter servers",
    "--python-version=3.7": "ranks have the Python of the executors",
    "--region=us-west1": "ranks run where the Spark cluster is",
    "--runtime-version=2.1": "ranks have the Python and torch of the executors",
    "--service-account=x": "executors have the account that the cluster gives them",
    "--staging-bucket=gs://b": "packages go to the executors from here",
    "--use-chief-in-tf-config=true": "there is no TF_CONFIG",
    "--network=x": "ranks are in the network of the Spark cluster",
    "--async": "the command waits for the end",
    "--kms-key=x": "data are encrypted as the cluster encrypts them",
}


def test_flags_that_change_nothing_are_taken_and_said(capsys: Any) -> None:
    flags = ("name", "--spark-master", "k8s://h", "--module-name", "m", "--stream-logs")
    assert dry(capsys, *flags)[2] == "", "the output is always shown"
    for flag, why in FLAGS.items():
        code, _, said = dry(capsys, *flags, flag)
        assert (code, len(said.splitlines())) == (0, 1), said
        assert why in said, "LAUNCH-7"


def test_machine_types_are_the_users_to_add(capsys: Any, tmp_path: Path) -> None:
    table = tmp_path / "machines.json"
    table.write_text('{"large": {"cores": 2, "memory": 1}, "small": {"cores": 1, "memory": 1}}')
    flags = ("name", "--spark-master", "spark://h:1", "--module-name", "m", "--worker-count", "2")
    _, words, _ = dry(capsys, *flags, "--machine-types", table, "--master-machine-type", "large")
    assert settings(words)["spark.cores.max"] == "6"
    table.write_text('{"large": {"cores": 1.5, "memory": 1}}')
    assert "machine type large: {'cores': 1.5, 'memory': 1}" in refusal(
        capsys, *flags, "--machine-types", table
    )
    table.write_text('{"large": {"cores": "two", "memory": 1}}')
    assert "machine type large: {'cores': 'two', 'memory': 1}" in refusal(
        capsys, *flags, "--machine-types", table, "--master-machine-type", "large"
    )


def test_a_source_distribution_is_shipped_as_what_python_imports(tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "task.py").write_text("print(1)")
    source = tmp_path / "trainer-0.1.tar.gz"
    with tarfile.open(source, "w:gz") as tar:
        tar.add(package, "trainer-0.1/src/trainer")
    out = tmp_path / "out"
    out.mkdir()
    shipped = for_spark([str(source), "hdfs://host/more.whl"], str(package), out)
    assert shipped == [str(out / "trainer-0.1.zip"), "hdfs://host/more.whl", str(out / "trainer.zip")]
    for archive in (shipped[0], shipped[2]):
        assert sorted(zipfile.ZipFile(archive).namelist()) == ["trainer/__init__.py", "trainer/task.py"]


def test_a_link_to_nowhere_in_a_source_distribution_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").touch()
    (tmp_path / "link").symlink_to("../../nowhere")
    with tarfile.open(tmp_path / "t-1.tar.gz", "w:gz") as tar:
        for name in ("link", "trainer.py"):
            tar.add(tmp_path / name, f"t-1/{name}")
    [shipped] = for_spark([str(tmp_path / "t-1.tar.gz")], None, tmp_path)
    assert zipfile.ZipFile(shipped).namelist() == ["trainer.py"]


def test_packages_that_spark_would_take_for_one_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        with tarfile.open(tmp_path / folder / "t-1.tar.gz", "w:gz"):
            pass
    with pytest.raises(
        ValueError, match=r"b/t-1\.tar\.gz and .*a/t-1\.tar\.gz have the same file name, t-1\.zip"
    ):
        for_spark([str(tmp_path / folder / "t-1.tar.gz") for folder in "ab"], None, tmp_path)
    with pytest.raises(ValueError, match=r"have the same file name, m\.py"):
        for_spark(["gs://a/m.py", "gs://b/m.py"], None, tmp_path)
    assert for_spark(["gs://a/m.py", "gs://a/m.py"], None, tmp_path) == ["gs://a/m.py"]


def test_a_spark_that_is_not_there_is_said(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/no/spark")
    assert command.main(["name", "--spark-master", "local[1]", "--module-name", "m"]) == 2
    assert "/no/spark/bin/spark-submit" in capsys.readouterr().err


def test_the_command_is_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "phalanx"], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    for words in ("run train.py", "submit job.yaml", "doctor"):
        assert f" phalanx {words} " in done.stderr


def submitting(tmp_path: Path, job: Path, *words: object) -> subprocess.Popen[str]:
    """`phalanx submit` with a spark-submit that says when it has begun, and that it was told to end."""
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\ntrap 'echo told; exit 7' TERM\necho begun\nfor i in $(seq 600); do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "phalanx", "submit", job, "--spark-master", "local[1]", *words]
    env = os.environ | {"SPARK_HOME": str(tmp_path / "spark"), "TMPDIR": str(tmp_path / "tmp")}
    return subprocess.Popen(
        [str(word) for word in command],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_as_in_a_terminal,
    )


def _as_in_a_terminal() -> None:
    # Who runs the tests may ignore these, as nohup does, and a program goes on ignoring what it is started with.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_ends_the_command_ends_spark_submit(number: signal.Signals, tmp_path: Path) -> None:
    with submitting(tmp_path, Path("name"), "--module-name", "m") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        assert len(list((tmp_path / "tmp").iterdir())) == 1
        process.send_signal(number)
        assert (process.wait(30), process.stdout.read()) == (7, "told\n"), "LAUNCH-10"
    assert list((tmp_path / "tmp").iterdir()) == [], "LAUNCH-8"


def test_a_command_that_ends_while_its_folder_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tempfile.mkdtemp

    def ended_meanwhile(*args: Any, **kwargs: Any) -> str:
        folder = made(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGTERM)
        return folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "mkdtemp", ended_meanwhile)
    with pytest.raises(SystemExit) as ended:
        command.main(["name", "--spark-master", "local[1]", "--module-name", "m", "--dry-run"])
    assert (ended.value.code, list(tmp_path.iterdir())) == (143, []), "LAUNCH-8"


def test_a_command_that_ends_before_spark_submit_began_leaves_nothing(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    os.mkfifo(job)  # who opens it waits
    with submitting(tmp_path, job) as process:
        eventually("it prepares", 30, lambda: list((tmp_path / "tmp").iterdir()))
        process.send_signal(signal.SIGTERM)
        assert (process.wait(30), process.communicate()[0]) == (143, "")
    assert list((tmp_path / "tmp").iterdir()) == [], "LAUNCH-8"
