"""Any value of any key of a model that TensorRT-LLM serves: taken or not, nothing breaks."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import pytest

from engines.trtllm.settings import TrtServers, TrtSettings
from runtime import config_file
from runtime.config.models import ModelSettings
from tests.runtime.test_any_value import VALUES
from tests.runtime.test_trt_config import GUARD, MODEL


@pytest.mark.parametrize("key", get_type_hints(TrtSettings))
def test_no_value_of_any_key_breaks_the_check(key: str, tmp_path: Path) -> None:
    for value in VALUES:
        for more in ("", "guard = false\n", 'python = "x"\n'):
            if more.startswith(key):
                continue
            text = f"{MODEL}[models.trt]\n{more}{key} = {value}\n"
            config_file.parse(text, "", folder=tmp_path)


@pytest.mark.parametrize("key", get_type_hints(TrtServers))
def test_no_value_of_a_phase_s_keys_breaks_the_check(key: str, tmp_path: Path) -> None:
    for value in VALUES:
        phase = f"{key} = {value}" + ("" if key == "urls" else ', urls = ["a:1"]')
        text = (
            f"{MODEL}[models.trt]\ncontext = {{ {phase} }}\ngeneration = {{ urls = [{value}] }}\n"
        )
        config_file.parse(text, "", folder=tmp_path)


@pytest.mark.parametrize("key", get_type_hints(ModelSettings))
def test_no_value_of_the_model_s_keys_breaks_the_check(key: str, tmp_path: Path) -> None:
    for value in VALUES:
        text = f"[[models]]\n{key} = {value}\n"
        text += "" if key == "id" else 'id = "m"\n'
        text += "" if key == "engine" else 'engine = "tensorrt-llm"\n'
        config_file.parse(text, "", folder=tmp_path)


@pytest.mark.parametrize("path", ["a" * 5000, "\\u0000", "/proc/1/root/x", "/dev/null"])
def test_a_path_that_no_file_can_have_breaks_nothing(path: str, tmp_path: Path) -> None:
    text = f'{MODEL}path = "{path}"\n[models.trt]\n{GUARD}'
    config_file.parse(text, "", folder=tmp_path)
