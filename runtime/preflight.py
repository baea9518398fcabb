"""What can be known before a start by looking outside the file: certificates, cards, keys, extras.

Asked when a file is about to be used, and never of what is deployed already: a certificate that has
expired since must not keep a process from starting again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engines import registry
from engines.api import EngineError
from engines.extras import how_to_install
from engines.trtllm import harmony, manifest
from engines.trtllm.settings import ENGINE as TENSORRT_LLM, KIND as TRTLLM, TrtSettings
from runtime.config.cards import card_of
from runtime.config.check import convert
from runtime.config.report import Report
from runtime.config.tls import ClientTls, ServerTls
from runtime.tls import certificates

OTLP = "opentelemetry.exporter.otlp.proto.http"


def check(data: dict[str, Any], folder: Path, report: Report) -> None:
    """Add to `report` what is wrong. Relative paths start at `folder`.

    `data` is what the file says, good or bad: a fault in one key doesn't hide what another names.
    """
    for path, kind, table in _tables(data):
        tls = convert(kind, table, Report())
        if tls is not None:
            certificate = certificates.read(tls, folder)
            for key, message in certificate.errors:
                report.error(f"{path}.{key}", message)
            for key, message in certificate.warnings:
                report.warn(f"{path}.{key}", message)
    _check_keys(data, folder, report)
    _check_tokenizers(data, folder, report)
    _check_harmony(data, folder, report)
    _check_checkpoints(data, report)
    _check_extra(data, report)
    for i, model in enumerate(_list(data, "models")):
        card, source = model.get("card", ""), model.get("source", "")
        if isinstance(card, str) and isinstance(source, str):
            card_of(card, source, folder, report, f"models[{i}].card")
    _check_exports(data, report)
    seen = data.get("observability")
    otel = seen.get("otel") if isinstance(seen, dict) else None
    if isinstance(otel, dict) and otel.get("endpoint") and not _has(OTLP):
        report.error("observability.otel.endpoint", f"needs packages: {how_to_install('otel')}")


def _check_checkpoints(data: dict[str, Any], report: Report) -> None:
    """Those of attached servers that lie elsewhere: what is on this machine was looked over."""
    for i, model in enumerate(_list(data, "models")):
        path = model.get("path")
        if model.get("engine") != TENSORRT_LLM or not isinstance(path, str) or not path:
            continue
        trt = model.get("trt")
        if isinstance(trt, dict) and (trt.get("python") or trt.get("image")):
            continue  # it is launched from here, and that is an error
        if not os.path.exists(path):
            told = "isn't on this machine: nobody looks it over here, nor tells what it holds"
            report.warn(f"models[{i}].path", told)


def _check_extra(data: dict[str, Any], report: Report) -> None:
    """Keys that TensorRT-LLM may not have: it would end as it starts."""
    for i, model in enumerate(_list(data, "models")):
        trt = model.get("trt")
        if model.get("engine") != TENSORRT_LLM or not isinstance(trt, dict):
            continue
        version, extra = trt.get("version", TrtSettings().version), trt.get("extra")
        if not isinstance(extra, dict) or not isinstance(version, str):
            continue
        for path, reason in manifest.doubtful(version, extra):
            report.warn(f"models[{i}].trt.extra.{path}", f"{reason}, as far as is known")


def _check_exports(data: dict[str, Any], report: Report) -> None:
    """A job that could never write its files."""
    triggers = data.get("triggers")
    for i, job in enumerate(_list(triggers, "crons") if isinstance(triggers, dict) else ()):
        if job.get("format") == "parquet" and not _has("pyarrow"):
            told = f"needs packages: {how_to_install('parquet')}"
            report.error(f"triggers.crons[{i}].format", told)


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even what it's part of
        return False


def _check_tokenizers(data: dict[str, Any], folder: Path, report: Report) -> None:
    """The folders that plain prompts need."""
    for i, model in enumerate(_list(data, "models")):
        named = model.get("tokenizer", "")
        if isinstance(named, str) and named:
            try:
                registry.prompt_encoder(str(folder / named))
            except EngineError as fault:
                report.error(f"models[{i}].tokenizer", str(fault))


def _check_harmony(data: dict[str, Any], folder: Path, report: Report) -> None:
    """Models whose salts TensorRT-LLM drops: what their folder says, or their name if they may."""
    for i, model in enumerate(_list(data, "models")):
        named, cache = model.get("tokenizer", ""), model.get("cache", "")
        if not _salts_trtllm(model):
            continue
        if isinstance(named, str) and named and harmony.is_one(folder / named):
            told = f"its tokenizer's folder is a gpt-oss model's. {harmony.NO_SALT} prefixes"
            report.error(f"models[{i}].cache", f'{told}: say "off", or "shared-accepted"')
        elif cache == "salted" and harmony.is_named(model):
            told = f"its name says gpt-oss. {harmony.NO_SALT} prefixes"
            report.warn(f"models[{i}].cache", f"{told}: see what `bulkhead backend test` says")


def _salts_trtllm(model: dict[str, Any]) -> bool:
    """Whether a model is TensorRT-LLM's, and its tenants are to be told apart by salts."""
    trt = model.get("trt")
    reuses = not isinstance(trt, dict) or trt.get("block_reuse", True) is not False
    is_trt = model.get("engine") == TENSORRT_LLM or model.get("kind") == TRTLLM
    return is_trt and reuses and model.get("cache", "") in ("", "salted")


def _check_keys(data: dict[str, Any], folder: Path, report: Report) -> None:
    """The key sets of issuers that lie in files."""
    for i, issuer in enumerate(_list(data, "issuers")):
        keys = issuer.get("jwks_file", "")
        is_meant = isinstance(keys, str) and keys and not issuer.get("jwks_url")
        if is_meant and not (folder / keys).is_file():
            report.error(f"issuers[{i}].jwks_file", f"there is no file {folder / keys}")


def _tables(data: dict[str, Any]) -> Iterator[tuple[str, type[ServerTls | ClientTls], Any]]:
    """Every `tls` table that names files: its path, what it is, and what it says."""
    for name in ("server", "admin", "node"):
        section = data.get(name)
        if isinstance(section, dict) and "tls" in section:
            yield f"{name}.tls", ServerTls, section["tls"]
    limits = data.get("limits")
    redis = limits.get("redis") if isinstance(limits, dict) else None
    if isinstance(redis, dict) and "tls" in redis:
        yield "limits.redis.tls", ClientTls, redis["tls"]
    for name in ("nodes", "models", "issuers"):
        for i, table in enumerate(_list(data, name)):
            if "tls" in table:
                yield f"{name}[{i}].tls", ClientTls, table["tls"]
            for j, server in enumerate(_list(table, "servers")):
                if "tls" in server:
                    yield f"{name}[{i}].servers[{j}].tls", ClientTls, server["tls"]


def _list(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    tables = data.get(name)
    return [t if isinstance(t, dict) else {} for t in tables] if isinstance(tables, list) else []
