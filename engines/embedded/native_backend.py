"""The native backend: packed weights, mapped, and kernels without torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import structlog

from engines.embedded import packed
from engines.embedded.backend import Backend
from engines.embedded.checkpoint import Checkpoint, revision, sources
from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError
from engines.embedded.kv import PageBytes, Scales
from engines.embedded.native_runner import NativeRunner
from engines.embedded.packed import Packed
from engines.embedded.packing import layout, pack
from engines.kernels import native

PRODUCTS = {
    ("bf16", "bfloat16"): "w16a16",
    ("bf16", "int8"): "w16a16",
    ("int8", "bfloat16"): "w8a8",
    ("int8", "int8"): "w8a8",
    ("int6", "bfloat16"): "w6a8",
    ("int6", "int8"): "w6a8",
    ("int4", "bfloat16"): "w4a16",
    ("int4", "int8"): "w4a8",
}

log = structlog.get_logger()


def open_backend(folder: Path, model: ModelConfig, engine: EngineConfig, isa: str = "") -> Backend:
    """See backend.open_backend. `isa`: an instruction set other than this CPU's best."""
    isa = isa or native.module.isas()[0]
    weights = weights_of(folder, model, engine)
    scales = Scales.of(folder, model, engine)
    kv = PageBytes(model, engine)
    computing = _model(weights, model, engine, kv, scales, isa)
    return Backend(
        runner=NativeRunner(computing, kv, model.vocab_size, engine.page_size),
        kv=kv,
        revision=weights.header.revision,
        kv_scales=scales.digest,
        layout=native.module.KV_LAYOUT,
        arithmetic=f"native/{isa}/{engine.activations}",
    )


def weights_of(folder: Path, model: ModelConfig, engine: EngineConfig) -> Packed:
    """The packed weights: mapped where they lie, packed first if they don't, or have changed."""
    place, files = _place(folder, engine), sources(folder)
    form, stamps = layout(), packed.stamps(files)
    found = packed.read(place, form)
    if found is not None and found.header.sources == stamps:
        return found
    fresh = revision(folder)
    if found is not None and found.header.revision != fresh:
        found = None
    if found is not None:  # copied, or touched: only its header is out of date
        fill = packed.again(found)
    else:
        checkpoint = Checkpoint(folder)
        log.info("packing_weights", path=str(place))

        def fill(writer: packed.Writer) -> None:
            pack(writer, checkpoint, model, engine.lm_head)
            if packed.stamps(files) != stamps:
                raise UnsupportedError(f"the weights in {folder} changed while they were read")

    try:
        return packed.write(place, form, fresh, stamps, fill)
    except OSError as error:
        if found is not None:
            return found  # where nobody may write, as in an image: hashed at each start
        log.warning("packed_in_memory", path=str(place), error=str(error))
        return packed.in_memory(form, fresh, stamps, fill)


def _place(folder: Path, engine: EngineConfig) -> Path:
    name = f"native-{engine.lm_head}.packed"
    if not engine.packed_folder:
        return folder / name
    of_model = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
    return Path(engine.packed_folder) / f"{folder.name}-{of_model}-{name}"


def _model(
    weights: Packed,
    model: ModelConfig,
    engine: EngineConfig,
    kv: PageBytes,
    scales: Scales,
    isa: str,
) -> native.Model:
    parts = _Parts(weights, engine.activations)
    return native.module.Model(
        embedding=weights.array("embedding"),
        layers=[parts.layer(index) for index in range(model.num_layers)],
        norm=weights.array("norm"),
        head=parts.linear("head"),
        cos=weights.array("cos"),
        sin=weights.array("sin"),
        pages=native.module.Pages(
            memory=kv.memory.data[: kv.num_pages * kv.page_bytes],
            num_layers=model.num_layers,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            page_size=engine.page_size,
            numbers=engine.kv_dtype,
            k_scales=list(scales.k),
            v_scales=list(scales.v),
        ),
        heads=model.num_heads,
        inner=model.intermediate_size,
        eps=model.rms_norm_eps,
        isa=isa,
        threads=engine.threads,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """A packed file's arrays as layers."""

    weights: Packed
    activations: str

    def layer(self, index: int) -> native.Layer:
        array, get = self.weights.array, self.weights.get
        return native.module.Layer(
            attention_norm=array(f"{index}.attention_norm"),
            qkv=self.linear(f"{index}.qkv"),
            q_norm=get(f"{index}.q_norm"),
            k_norm=get(f"{index}.k_norm"),
            output=self.linear(f"{index}.output"),
            mlp_norm=array(f"{index}.mlp_norm"),
            gate_up=self.linear(f"{index}.gate_up"),
            down=self.linear(f"{index}.down"),
        )

    def linear(self, name: str) -> native.Linear:
        weights, n, k, group = self.weights.header.facts[name]
        return native.module.Linear(
            PRODUCTS[weights, self.activations],
            self.weights.array(name),
            n,
            k,
            group,
            self.weights.get(f"{name}.bias"),
            self.weights.get(f"{name}.factors"),
        )
