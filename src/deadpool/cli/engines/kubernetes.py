"""`deadpool kubernetes`: the objects of a job on Kubernetes, and what runs in its coordinators' pods."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from deadpool.cli.start.options import with_settings
from deadpool.config.values import COORDINATOR

app = typer.Typer(help="Run a job on Kubernetes, with or without the operator.", no_args_is_help=True)
_SCRIPT_LAST = {"allow_interspersed_args": False, "ignore_unknown_options": True}
_CODE_TERMINATED = 143


@app.command(context_settings=_SCRIPT_LAST)
def manifest(
    program: Annotated[
        list[str] | None, typer.Argument(help="the training script as the image has it, and its arguments")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(help="a training script that is not in the image; its arguments follow")
    ] = None,
    name: Annotated[str, typer.Option(help="the name of the job and of its objects")] = "train",
    values: Annotated[Path | None, typer.Option(help="YAML file with any fields of a job (docs: kubernetes)")] = None,
    image: Annotated[str | None, typer.Option(help="the image of all pods")] = None,
    nodes: Annotated[int | None, typer.Option(help="pods that train")] = None,
    spares: Annotated[int | None, typer.Option(help="pods that wait to take the ranks of lost ones")] = None,
    nproc_per_node: Annotated[int | None, typer.Option(help="trainers per pod, one rank each")] = None,
    server_version: Annotated[str, typer.Option(help="version of the cluster, if it is older than 1.21")] = "1.21",
    custom_resource: Annotated[bool, typer.Option(help="print a DeadPoolJob, for clusters with the operator")] = False,
) -> None:
    """Print the objects of a job as YAML, for kubectl apply -f -."""
    from deadpool.clusters.kubernetes import charts
    from deadpool.clusters.kubernetes.spec import checked_name

    given = {"program": program, "image": image, "nodes": nodes, "spares": spares, "nprocPerNode": nproc_per_node}
    fields = {
        **charts.read_values(values),
        **{key: value for key, value in given.items() if value not in (None, [])},
    }
    if script is not None:
        fields["script"] = charts.read_script(script)
    made = charts.job_objects(
        checked_name(name), fields, custom_resource=custom_resource, server_version=server_version
    )
    sys.stdout.write(charts.as_yaml(made))


@app.command()
def crd() -> None:
    """Print the definition of the custom resource DeadPoolJob as YAML."""
    from deadpool.clusters.kubernetes.charts import as_yaml
    from deadpool.clusters.kubernetes.job_objects import definition

    sys.stdout.write(as_yaml([definition()]))


@app.command()
def operator_manifest(
    image: Annotated[str, typer.Option(help="an image with DeadPool and its extra kubernetes; torch is not needed")],
) -> None:
    """Print the objects of the operator, with the custom resource, as YAML, for kubectl apply -f -."""
    from deadpool.clusters.kubernetes.charts import as_yaml
    from deadpool.clusters.kubernetes.job_objects import operator_objects

    sys.stdout.write(as_yaml(operator_objects(image)))


@app.command()
def deploy(
    folder: Annotated[Path, typer.Argument(help="where to write them")],
) -> None:
    """Write the Helm chart, the Kustomize base and the operator's objects; deploy/kubernetes has them."""
    from deadpool.clusters.kubernetes.charts import write_all

    write_all(folder)


@app.command()
def probe() -> None:
    """Ask the coordinator of this pod, and exit with 0 if it answers."""
    from deadpool.clusters.kubernetes.job_state import ask_one
    from deadpool.clusters.kubernetes.pods import RUN_FOLDER
    from deadpool.protocol.identity import Address
    from deadpool.protocol.messages import Ask
    from deadpool.wire.credentials import read_credentials

    address = Address.parse((Path(RUN_FOLDER) / "address").read_text(encoding="utf-8"))
    answer = asyncio.run(ask_one(address, read_credentials(), Ask(what="status", arguments={})))
    raise typer.Exit(0 if answer is not None else 1)


@app.command()
@with_settings(COORDINATOR)
def coordinator(
    job: Annotated[str, typer.Option(help="the job's name")],
    index: Annotated[int, typer.Option(help="which of the job's coordinators this is, from 0 on")],
    run_dir: Annotated[Path, typer.Option(help="folder for events and logs")],
    *,
    flags: dict[str, Any],
) -> None:
    """Coordinate a job from a pod: as `deadpool coordinator`, and the job's ConfigMap knows whether it has begun and
    how it ended. SIGTERM hands the job to the other coordinator."""
    from deadpool.cli.start.coordinator import coordinate, founds
    from deadpool.clusters.kubernetes.job_state import JobStateStore
    from deadpool.clusters.kubernetes.pods import await_own_name, place
    from deadpool.config.resolution import resolve
    from deadpool.control.launch.run_dir import RunDir, put_earlier_job_away
    from deadpool.control.loops import serve

    signal.signal(signal.SIGTERM, _leave)  # the first process of a container ignores what it has no handler for
    settings = place(resolve(flags, settled=True), index)
    store = JobStateStore(job)
    state = store.read()
    if state.outcome:
        print(f"[deadpool] the job is over: {state.outcome}: {state.reason}", flush=True)
        raise typer.Exit(state.exit_code)
    await_own_name(settings.host)
    folder = RunDir.create(run_dir)
    (run_dir / "address").write_text(f"{settings.host}:{settings.port}", encoding="utf-8")
    if index == 0 and not state.begun:
        put_earlier_job_away(folder)
    begins = founds(settings, folder) and not state.begun
    if begins:
        store.note_begun(os.environ.get("POD_NAME", settings.host))
    outcome = serve(coordinate(settings, folder, quiet=False, founds=begins, stops_on=()))
    code = 1 if outcome.failed else 0
    if outcome.of_leader:
        places = max(1, len(settings.coordinator_places))
        store.note_end(failed=outcome.failed, reason=outcome.reason, coordinators=places)
    elif not outcome.failed:
        code = store.await_end().exit_code  # the Jobs of all coordinators end as the training job did
    raise typer.Exit(code)


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the process at once and without a word: agents turn to the next coordinator when the connection ends."""
    os._exit(_CODE_TERMINATED)


@app.command()
def operator(
    namespace: Annotated[list[str] | None, typer.Option(help="watch only this namespace (repeatable)")] = None,
) -> None:
    """Run the operator: it creates and watches the objects of every DeadPoolJob. Its pod needs the rights of
    deploy/kubernetes/operator."""
    from deadpool.clusters.kubernetes.operator import run

    run(namespace or [])
