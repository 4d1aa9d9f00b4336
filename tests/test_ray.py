"""Workers on Ray: one is killed and replaced, all are stopped, and mistakes are one line."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import error_of
from postgres_server import PASSWORD, server, why_not
from studies import make_recipe, make_study, write_tokens

from completedp.studies import ray_workers
from completedp.studies.config import WorkerConfig
from completedp.studies.engines import Proposal
from completedp.studies.ray_workers import run_on_ray
from completedp.studies.store import Store, Study, TrialRow
from completedp.tasks.config import Sources

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason='Ray is not installed: pip install "completedp[ray]"'
)
PATIENCE = 90.0
AHEAD = 20
"""Trials that are always left while a test is not done: no machine is too fast for it."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("ray"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """Ray's files, sockets among them, whose paths must be short."""
    made = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def store_url(tmp_path: Path) -> Iterator[str]:
    """PostgreSQL with a password where it is installed."""
    if why_not():
        yield str(tmp_path / "store.db")
        return
    with server("fsync=off") as running:
        yield running.database()


@contextmanager
def two_workers(url: str, data: str, folder: Path, lease: float) -> Iterator[subprocess.Popen[str]]:
    """`completedp search ray` with a local cluster, of which no process outlives the test."""
    command = [sys.executable, "-m", "completedp", "search", "ray", "--store", url, "--data", data]
    command += ["--workers", "2", "--slots", "2", "--lease", str(lease), "--json"]
    command += ["--device", "cpu", "--no-compile"]
    # Ray keeps a token of its clusters at home.
    changed = {"HOME": str(folder), "RAY_TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | changed
    pipe = subprocess.PIPE
    driver = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    )
    try:
        with driver:
            try:
                yield driver
            finally:
                driver.kill()
        wait_until(lambda: not processes(driver.pid))
    finally:
        for pid in processes(driver.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes(session: int) -> list[int]:
    """What is alive of a session, which all that a driver starts belongs to."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True)
    found = []
    for line in listed.stdout.splitlines():
        pid, state = line.split()
        with suppress(ProcessLookupError):
            if not state.startswith("Z") and os.getsid(int(pid)) == session:
                found.append(int(pid))
    return found


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_for_workers(
    study: Study, driver: subprocess.Popen[str], count: int, besides: Collection[str] = ()
) -> list[str]:
    """The names of so many workers, once they have trials; there is work for them till then."""
    names: set[str] = set()

    def there() -> bool:
        if driver.poll() is not None:
            pytest.fail(driver.communicate()[1])
        study.set_budget(study.counts()["finished"] + AHEAD)
        names.update(row.worker for row in study.trials(curves=False))
        return len(names - set(besides)) >= count

    wait_until(there)
    return sorted(names - set(besides))


def running(study: Study, worker: str) -> list[TrialRow]:
    rows = study.trials(curves=False)
    return [row for row in rows if row.worker == worker and row.state == "running"]


def frozen_at_work(study: Study, worker: str, pid: int) -> list[int]:
    """The trials that a worker has in hand at the moment it is stopped; some, always."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        if held := running(study, worker):
            return [row.number for row in held]
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)


@pytest.mark.slow
@needs_ray
def test_a_killed_worker_is_replaced(data: str, folder: Path, tmp_path: Path) -> None:
    """Ray starts a killed worker again, and every trial of the budget is finished exactly once."""
    url = str(tmp_path / "store.db")
    with Store(url) as store:
        study = make_study(store, data, recipe=make_recipe(steps=100), trials=AHEAD)
        with two_workers(url, data, folder, lease=2.0) as driver:
            victim, other = wait_for_workers(study, driver, 2)
            pid = int(victim.rpartition("-")[2])
            assert pid in processes(driver.pid)
            held = frozen_at_work(study, victim, pid)
            os.kill(pid, signal.SIGKILL)
            assert wait_for_workers(study, driver, 1, besides=(victim, other))
            said, complaints = driver.communicate(timeout=PATIENCE)
        rows = study.trials()
        every = list(range(study.spec["trials"]))
    assert driver.returncode == 0, complaints
    assert json.loads(said)["counts"]["finished"] == len(every)
    assert [row.number for row in rows] == every == sorted(row.sequence or 0 for row in rows)
    for number in held:
        assert rows[number].attempt > 1
        assert rows[number].worker != victim


@needs_ray
@pytest.mark.slow
def test_ctrl_c_gives_the_trials_back(data: str, folder: Path, store_url: str) -> None:
    """At Ctrl-C what was running may be claimed at once, long before its lease runs out.

    Ray's files do not hold the store's password.
    """
    with Store(store_url) as store:
        study = make_study(store, data, recipe=make_recipe(steps=100), trials=AHEAD)
        with two_workers(store_url, data, folder, lease=600.0) as driver:
            wait_for_workers(study, driver, 2)
            study.set_budget(10**6)
            os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to all in the foreground
            complaints = driver.communicate(timeout=PATIENCE)[1]
        counts = study.counts()
    assert driver.returncode == 130, complaints
    assert complaints.splitlines()[-1].startswith("completedp: interrupted")
    assert counts["expired"] == counts["running"] > 0
    logs = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    assert logs
    assert not [path for path in logs if PASSWORD.encode() in path.read_bytes()]
    assert PASSWORD not in complaints


def proposed(number: int) -> Proposal:
    return Proposal(point=np.zeros(2), seed=number)


class ScriptedRay:
    """At each look the oldest task ends as told; when all is told, the study is finished."""

    def __init__(self, study: Study, *endings: Any) -> None:
        import ray.exceptions

        self.exceptions = ray.exceptions
        self.study, self.endings = study, list(endings)
        self.ended: dict[int, Any] = {}
        self.launched = 0
        self.cancelled: list[int] = []

    def launch(self) -> int:
        self.launched += 1
        return self.launched

    def wait(self, tasks: list[int], **_: Any) -> tuple[list[int], list[int]]:
        if not self.endings:
            claim = self.study.claim("w", proposed, lease_seconds=PATIENCE)
            if claim is not None:
                self.study.finish(claim, loss=1.0, status="ok", steps=1, curve=[])
            return [], tasks
        self.ended[tasks[0]] = self.endings.pop(0)
        return tasks[:1], tasks[1:]

    def get(self, task: int) -> Any:
        if isinstance(self.ended[task], Exception):
            raise self.ended[task]
        return self.ended[task]

    def cancel(self, task: int, force: bool = False) -> None:
        self.cancelled.append(task)

    def drive(self, workers: int) -> list[int]:
        """How many workers were given up, at each look."""
        looks: list[int] = []
        ray_workers._drive(
            self,
            self.study,
            self.launch,
            workers,
            lambda counts, faults: looks.append(len(faults)),
        )
        return looks


@pytest.fixture
def one_trial(tmp_path: Path) -> Iterator[Study]:
    with Store(str(tmp_path / "store.db")) as store:
        yield store.create_study("tune", {"trials": 1})


@needs_ray
def test_workers_that_end_without_a_fault_are_replaced(one_trial: Study) -> None:
    """A worker that was told to stop, or ended too soon, is launched again; a faulty one is not."""
    from ray.exceptions import TaskCancelledError

    ray = ScriptedRay(one_trial, TaskCancelledError(), None, "no tokens")
    assert ray.drive(workers=2) == [0, 0, 0, 1]
    assert ray.launched == 4
    assert ray.cancelled == [4, 4]  # asked, and then made to


@needs_ray
def test_when_all_workers_are_faulty_that_is_raised(one_trial: Study) -> None:
    """With nobody left to work the last one's reason is the error."""
    ray = ScriptedRay(one_trial, "a: no tokens", "b: no tokens")
    assert error_of(ray.drive, 2) == "b: no tokens"
    assert ray.launched == 2
    assert one_trial.counts()["finished"] == 0


@needs_ray
@pytest.mark.parametrize(
    ("gpus", "device", "on_gpus"),
    [(4, "auto", 1), (4, "cuda", 1), (4, "cpu", 0), (0, "auto", 0), (0, "cuda", 1)],
)
def test_a_worker_takes_a_gpu_where_there_are_any(gpus: int, device: str, on_gpus: int) -> None:
    """One GPU each, unless the cluster has none or the CPU is asked for; dead ones come back."""
    options = WorkerConfig(device=device)
    needs = ray_workers._worker(cluster(gpus=gpus), "postgresql://h/d", options, 9, "auto")
    assert needs == {"num_cpus": 1, "num_gpus": on_gpus, "max_retries": -1}


@needs_ray
def test_a_machine_has_only_so_many_gpus() -> None:
    """More workers than this machine has GPUs would wait for ever: one line."""
    options = WorkerConfig()
    ray_workers._worker(cluster(gpus=2), "store.db", options, 2, "local")
    message = error_of(ray_workers._worker, cluster(gpus=2), "store.db", options, 3, "local")
    assert message.startswith("workers = 3 ")


@needs_ray
def test_a_file_is_for_one_node() -> None:
    """A SQLite store on several nodes that are alive is one line; on one the workers stay there."""
    options = WorkerConfig()
    for url in ("store.db", "sqlite:///store.db"):
        needs = ray_workers._worker(cluster(nodes=1, dead=2), url, options, 2, "auto")
        assert needs["scheduling_strategy"].node_id == "ab" * 28
        message = error_of(ray_workers._worker, cluster(nodes=2), url, options, 2, "auto")
        assert repr(url) in message
        assert "postgresql://" in message
    ray_workers._worker(cluster(nodes=2), "postgresql://h/d", options, 2, "auto")


def cluster(*, gpus: int = 0, nodes: int = 1, dead: int = 0) -> Any:
    """What is asked of a Ray that has these; its tasks are what they need."""
    import ray.util.scheduling_strategies

    return SimpleNamespace(
        cluster_resources=lambda: {"CPU": 8.0} | ({"GPU": float(gpus)} if gpus else {}),
        nodes=lambda: [{"Alive": True}] * nodes + [{"Alive": False}] * dead,
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "ab" * 28),
        util=ray.util,
        remote=lambda **needs: lambda function: needs,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@needs_ray
@pytest.mark.parametrize("address", ["", "nowhere", "host:port", "host:99999", "ray://host"])
def test_an_address_that_cannot_be_is_one_line(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """An address that nobody listens at, or that is none, is one line that quotes it."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    address = address or f"127.0.0.1:{free_port()}"
    url, sources = str(tmp_path / "store.db"), Sources(data=data)
    with Store(url) as store:
        make_study(store, data)
    message = error_of(run_on_ray, url, None, sources, WorkerConfig(), 2, address)
    assert repr(address) in message
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert error_of(run_on_ray, url, None, sources, WorkerConfig(), 2, None) == message


def test_mistakes_are_said_before_ray_is_started(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No workers, no store, no such study, no tokens, no Ray: one line each."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    url, options = str(tmp_path / "store.db"), WorkerConfig(device="cpu")
    sources, nowhere = Sources(data=data), Sources(data="nowhere")
    assert "no store" in error_of(run_on_ray, url, None, sources, options, 2, None)
    with Store(url) as store:
        make_study(store, data)
    assert "workers = 0" in error_of(run_on_ray, url, None, sources, options, 0, None)
    assert "'other'" in error_of(run_on_ray, url, "other", sources, options, 2, None)
    assert "nowhere" in error_of(run_on_ray, url, None, nowhere, options, 2, None)
    assert "completedp[ray]" in error_of(run_on_ray, url, None, sources, options, 2, None)


def test_a_finished_study_needs_no_ray(one_trial: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing left to do nothing is started."""
    monkeypatch.setitem(sys.modules, "ray", None)
    claim = one_trial.claim("w", proposed, lease_seconds=PATIENCE)
    assert claim is not None
    one_trial.finish(claim, loss=1.0, status="ok", steps=1, curve=[])
    url = one_trial._database.shown.strip("'")
    run_on_ray(url, None, Sources(data="nowhere"), WorkerConfig(), 2, None)


def test_the_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster it may not be on the command line, which Ray shows; PGPASSWORD goes along."""
    secret = "postgresql://me:secret@host/studies"
    monkeypatch.setattr(sys, "argv", ["completedp", f"--store={secret}"])
    message = error_of(ray_workers._refuse_shown_password, secret)
    assert "secret" not in message
    assert "PGPASSWORD" in message
    monkeypatch.setattr(sys, "argv", ["completedp", "--store=postgresql://me@host/studies"])
    ray_workers._refuse_shown_password("postgresql://me@host/studies")
    ray_workers._refuse_shown_password(secret)  # from a program
    monkeypatch.setenv("PGPASSWORD", "secret")
    assert ray_workers._url_for_workers("postgresql://me@host/studies") == secret
    monkeypatch.delenv("PGPASSWORD")
    for url in (secret, "postgresql://me@host/studies", "postgresql:///studies?host=%2Frun"):
        assert ray_workers._url_for_workers(url) == url


def test_workers_find_a_relative_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SQLite store's path is made whole, since workers run in other folders."""
    monkeypatch.chdir(tmp_path)
    whole = str(tmp_path / "store.db")
    for url in ("store.db", "sqlite:///store.db", whole, f"sqlite:///{whole}"):
        assert ray_workers._url_for_workers(url) == whole
