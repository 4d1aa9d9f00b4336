"""Workers on a Ray cluster: Ray places them, one to a GPU, and starts the dead ones again.

A worker is a plain Ray task that joins the study as `search worker` does. Nothing passes between
the machines but its settings: trials are shared out by the store, so a task may die anywhere and
be run again elsewhere. Stopping is Ray's too: a cancelled task sees a Ctrl-C, on which a worker
gives its trials back.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from completedp.common.checks import check_whole
from completedp.common.errors import CompletedpError, first_line
from completedp.common.extras import import_extra
from completedp.common.files import user_path
from completedp.common.process import answered_signals
from completedp.studies.config import WorkerConfig
from completedp.studies.objective import Objective
from completedp.studies.store import Store, Study
from completedp.studies.worker import work
from completedp.tasks.config import Sources

Report = Callable[[dict[str, int], list[Exception]], None]
"""Told the study's counts, and why workers were given up, every second."""

_LOCAL = "local"
_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 10.0
"""Workers that have not given their trials back by then are killed; the leases run out."""
_REACH_SECONDS = 10.0
"""Ray itself tries for minutes to reach an address that is wrong."""
_OBJECTS_BYTES = 2**27
"""Ray's store of objects, a third of the memory if not told: there are none."""


def run_on_ray(
    store_url: str,
    study_name: str | None,
    sources: Sources,
    options: WorkerConfig,
    workers: int,
    address: str | None = None,
    report: Report | None = None,
) -> None:
    """Work on a study with so many workers on a Ray cluster until its budget is finished.

    `address` is `auto` (the cluster this machine is part of), HOST:PORT, or None: RAY_ADDRESS if
    that is set, else a cluster of this machine alone, for as long as it takes. A Ray that the
    caller has initialised is used as it is. The tokens must be under the same path everywhere.

    A worker that dies is started again without end; one that says why it cannot work is given up,
    and when all are, that is raised. Ctrl-C and SIGTERM stop the workers.
    """
    workers = check_whole("workers", workers)
    if ":" not in sources.data:  # the workers are in folders of their own
        sources = replace(sources, data=str(user_path(sources.data).absolute()))
    address = address or os.environ.get("RAY_ADDRESS") or _LOCAL
    with Store(store_url, create=False) as store:
        study = store.study(study_name)
        if _is_finished(study.counts()):
            return
        if address == _LOCAL:
            Objective.of(study, sources, options)  # mistakes are said before a cluster is started
        else:
            _refuse_shown_password(store_url)
        with _connected(address, workers) as ray:
            worker = _worker(ray, store_url, options, workers, address)
            url = _url_for_workers(store_url)

            def launch() -> Any:
                task = worker.options(name=f"completedp search {study.name}")
                return task.remote(url, study.name, sources, options)

            _drive(ray, study, launch, workers, report)


def _search_worker(
    url: str, study_name: str, sources: Sources, options: WorkerConfig
) -> str | None:
    """The task: a worker until the study is finished. Returns why it cannot be one.

    As a string, since a raised error would carry all that led to it into Ray's logs.
    """
    try:
        with Store(url, create=False) as store:
            study = store.study(study_name)
            work(study, Objective.of(study, sources, options))
    except CompletedpError as error:
        return f"{socket.gethostname()}: {error}"
    return None


def _worker(ray: Any, store_url: str, options: WorkerConfig, workers: int, address: str) -> Any:
    """The task with what it needs of the cluster: a GPU where there are any, else a CPU."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    on_gpu = options.device.startswith("cuda") or (options.device == "auto" and gpus > 0)
    if on_gpu and address == _LOCAL and workers > gpus:  # other clusters may grow
        raise CompletedpError(
            f"workers = {workers} is more than the {gpus} GPUs of this machine: each takes one"
        )
    needs: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(on_gpu), "max_retries": -1}
    if _is_sqlite(store_url):
        nodes = sum(node["Alive"] for node in ray.nodes())
        _refuse_sqlite(store_url, nodes)
        here = ray.get_runtime_context().get_node_id()  # also when the cluster grows
        strategies = ray.util.scheduling_strategies
        needs["scheduling_strategy"] = strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    return ray.remote(**needs)(_search_worker)


def _drive(
    ray: Any, study: Study, launch: Callable[[], Any], workers: int, report: Report | None
) -> None:
    """Keep so many workers at it until the budget is finished."""
    faults: list[Exception] = []
    waits_for = (
        f"stopping when the workers have given their trials back, {_GRACE_SECONDS:.0f} s at most"
    )
    with answered_signals(waits_for, hold=True) as interrupted:
        running = [launch() for _ in range(workers)]
        try:
            while True:
                ended, running = ray.wait(running, num_returns=len(running), timeout=_LOOK_SECONDS)
                counts = study.counts()
                if report is not None:
                    report(counts, faults)
                if _is_finished(counts):
                    return
                if interrupted():
                    raise KeyboardInterrupt
                for fault in (_fault(ray, task) for task in ended):
                    if fault is None:  # its machine said stop, or the budget was raised meanwhile
                        running.append(launch())
                    else:
                        faults.append(fault)
                if not running:
                    raise faults[-1]
        finally:
            _stop(ray, running)


def _fault(ray: Any, task: Any) -> Exception | None:
    """Why a worker that has ended cannot be started again, if so."""
    try:
        message = ray.get(task)
    except ray.exceptions.TaskCancelledError:  # not by us: SIGTERM to its process
        return None
    except ray.exceptions.RayTaskError as error:
        return error
    except ray.exceptions.RayError as error:
        return CompletedpError(f"Ray gave a worker up: {first_line(error)}")
    return None if message is None else CompletedpError(message)


def _stop(ray: Any, running: list[Any]) -> None:
    """End the workers: they give their trials back, or are killed if they take too long."""
    if not running:
        return
    for task in running:
        ray.cancel(task)
    _, deaf = ray.wait(running, num_returns=len(running), timeout=_GRACE_SECONDS)
    for task in deaf:
        ray.cancel(task, force=True)


@contextmanager
def _connected(address: str, workers: int) -> Iterator[Any]:
    """Ray, connected, or a cluster of this machine started; left again at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # asked for as Ray is imported
    ray = import_extra("ray", "search on Ray")
    import_extra("ray.util.scheduling_strategies", "search on Ray")  # else it is no attribute
    if ray.is_initialized():
        yield ray
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == _LOCAL:
        settings |= {"include_dashboard": False, "object_store_memory": _OBJECTS_BYTES}
        settings["num_cpus"] = max(workers, os.cpu_count() or 1)
    elif address != "auto":
        _reach(address)
    try:
        ray.init(address, **settings)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        what = "start Ray here" if address == _LOCAL else f"join a Ray cluster at {address!r}"
        raise CompletedpError(f"cannot {what}: {first_line(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise unless somebody listens at HOST:PORT or ray://HOST:PORT."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise CompletedpError(f"address = {address!r} must be auto or HOST:PORT")
    try:
        socket.create_connection((host, port), timeout=_REACH_SECONDS).close()
    except OSError as error:
        raise CompletedpError(
            f"no Ray cluster answers at {address!r} ({error.strerror or error}): "
            "give the HOST:PORT that `ray start --head` printed"
        ) from error


def _refuse_sqlite(store_url: str, nodes: int) -> None:
    if nodes > 1:
        raise CompletedpError(
            f"the store {store_url!r} is a file of one machine and the Ray cluster has {nodes} "
            "nodes: give a postgresql:// URL that all of them reach"
        )


def _refuse_shown_password(store_url: str) -> None:
    """Ray shows a driver's command line to all who may look at the cluster."""
    on_command_line = any(store_url in word for word in sys.argv)
    if not on_command_line or _is_sqlite(store_url):
        return
    url = sa.make_url(store_url)
    if url.password or any("pass" in key.lower() for key in url.query):
        raise CompletedpError(
            "Ray would show the store's password with the command line: leave it out of the URL "
            "and set PGPASSWORD"
        )


def _url_for_workers(store_url: str) -> str:
    """The store as the workers' processes find it: they have other folders and environments."""
    if not _is_sqlite(store_url):
        url, password = sa.make_url(store_url), os.environ.get("PGPASSWORD")
        if url.username and url.password is None and password:
            url = url.set(password=password)
        return url.render_as_string(hide_password=False)
    path = sa.make_url(store_url).database if "://" in store_url else store_url
    return str(user_path(path or "").absolute())


def _is_sqlite(store_url: str) -> bool:
    return "://" not in store_url or store_url.startswith("sqlite")


def _is_finished(counts: dict[str, int]) -> bool:
    return counts["finished"] >= counts["budget"]
