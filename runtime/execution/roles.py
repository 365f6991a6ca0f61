"""Loads what a session holds: each model once per layout, laid out on the ranks of its mesh, with its optimizer."""

import warnings
from collections.abc import Mapping
from dataclasses import replace

from torch.distributed.device_mesh import DeviceMesh

from ...compiler.plan import Holding, Instruction, Model
from ..errors import RunWarning
from ..models.layers import compile_layers, enable_checkpointing
from ..models.loading import Role, load_role
from ..models.sharding import device_group, lay_out, open_mesh
from .optimizer import Trainer
from .session import Session


def load_roles(session: Session) -> None:
    """Load every model that this rank holds, each file once.

    A frozen copy of a model that nothing trains shares its weights; of one that is trained it is a copy in memory,
    taken before step 0.
    """
    if session.whole.holdings:
        _load_holdings(session)
    else:
        _load_alone(session)
    for update in updates_of(session):
        session.trainers[update.attrs["model"]] = Trainer(
            session.roles[update.attrs["model"]], update.attrs["optimizer"]
        )


def updates_of(session: Session) -> list[Instruction]:
    return [i for i in session.plan.walk() if i.op == "update"]


def _load_alone(session: Session) -> None:
    models = {m.name: m for m in session.plan.models}
    loaded: dict[str, Role] = {}
    for model in session.plan.models:
        if model.of is None:
            session.roles[model.name] = _load_once(session, model, loaded)
    shared: dict[str, Role] = {}
    for model in session.plan.models:
        if model.of is not None:
            session.roles[model.name] = _start_of(session, model, models[model.of], shared)
    for update in updates_of(session):
        _prepare_training(session, update, session.roles[update.attrs["model"]])


def _load_once(session: Session, model: Model, loaded: dict[str, Role]) -> Role:
    """The role, sharing its weights with an equal one if no step changes either."""
    key = _identity(model)
    if model.trained or model.replaced:
        return _load(session, model, model.trained)
    if key not in loaded:
        loaded[key] = _load(session, model, False)
    return replace(loaded[key], name=model.name)


def _identity(model: Model) -> str:
    """Equal for models that start with the same weights."""
    return repr((model.kind, model.path, sorted(model.options.items())))


def _start_of(session: Session, model: Model, source: Model, shared: dict[str, Role]) -> Role:
    """The role of `frozen(source)`: shared wherever nothing can tell it from a copy."""
    if model.replaced:
        return session.roles[source.name].clone(model.name)
    if not source.trained and not source.replaced:
        return session.roles[source.name]
    if source.name not in shared:
        shared[source.name] = session.roles[source.name].clone(model.name)
        shared[source.name].module.requires_grad_(False)
    return shared[source.name]


def _load(session: Session, model: Model, trained: bool) -> Role:
    settings = session.settings
    role = load_role(
        model.kind,  # type: ignore[arg-type]
        model.path,
        dtype=session.dtype_of(model.name),
        device=settings.device,
        seed=settings.seed,
        name=model.name,
        base_dir=session.model_folder(model.path),
        dropout=float(model.options.get("dropout") or 0.0),
    )
    role.module.requires_grad_(trained)
    if role.fresh_head and model.frozen and session.world.rank == 0:
        text = f"`{model.path}` has no scalar head: what `{model.name}` says is random, and nothing trains it"
        warnings.warn(text, RunWarning, stacklevel=2)
    return role


def _prepare_training(session: Session, update: Instruction, role: Role) -> None:
    if update.attrs.get("checkpointing"):
        enable_checkpointing(role)
    if update.attrs.get("compile") or session.settings.compile:
        compile_layers(role)


# ---------------------------------------------------------------- on many ranks


def _load_holdings(session: Session) -> None:
    """Every holding starts whole, from the model's files, and is then laid out on its mesh."""
    meshes = _open_meshes(session)
    _open_device_groups(session)
    updates = {u.attrs["model"]: u for u in updates_of(session)}
    shared: dict[tuple[str, str, int], Role] = {}
    for holding in session.plan.holdings:
        mesh = meshes.get((holding.mesh, holding.fsdp)) if needs_layout(session, holding) else None
        key = (_identity(_source(session, holding)), holding.mesh, holding.fsdp)
        if _changes(session, holding):
            role = _laid_out(session, holding, updates.get(holding.name), mesh)
        else:
            if key not in shared:
                shared[key] = _laid_out(session, holding, None, mesh)
            role = shared[key]
        session.roles[holding.name] = replace(role, name=holding.model)


def _laid_out(session: Session, holding: Holding, update: Instruction | None, mesh: DeviceMesh | None) -> Role:
    """The role of a holding, prepared for the update that trains it, if there is one."""
    role = _load(session, _source(session, holding), update is not None)
    if update is not None:
        _prepare_training(session, update, role)
    if mesh is not None:
        lay_out(role, mesh, session.channel(holding.mesh))
    return role


def _source(session: Session, holding: Holding) -> Model:
    """The model whose files a holding starts from: a frozen copy has no files of its own."""
    models: Mapping[str, Model] = {m.name: m for m in session.whole.models}
    model = models[holding.model]
    return models[model.of] if model.of else model


def _changes(session: Session, holding: Holding) -> bool:
    return any(m.name == holding.model and (m.trained or m.replaced) for m in session.whole.models)


def needs_layout(session: Session, holding: Holding) -> bool:
    """Whether ranks have to talk to use the weights: to gather shards, or to sum gradients."""
    trained = any(m.name == holding.name and m.trained for m in session.whole.models)
    return holding.fsdp > 1 or trained


def _open_meshes(session: Session) -> dict[tuple[str, int], DeviceMesh | None]:
    """The device meshes of all ranks' holdings, opened by all ranks in the order of the plan."""
    wanted = [(h.mesh, h.fsdp) for h in session.whole.holdings if needs_layout(session, h)]
    device = session.settings.device.partition(":")[0]
    return {
        (mesh, fsdp): open_mesh(device, session.whole.ranks_of(mesh), fsdp, session.world.timeout)
        for mesh, fsdp in dict.fromkeys(wanted)
    }


def _open_device_groups(session: Session) -> None:
    """The groups in which weights go from holding to holding, on the device."""
    for name in dict.fromkeys(i.groups[-1] for i in session.whole.walk() if i.op == "weights"):
        group = device_group(session.whole.ranks_of(name), session.world.timeout)
        if group is not None:
            session.device_groups[name] = group
