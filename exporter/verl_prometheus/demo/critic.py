"""Lets verl build a critic without flash attention; verl loads it through VERL_USE_EXTERNAL_MODULES.

`critic.model.external_lib` would be the place, but verl 0.9.1 imports it in the trainer, not in the worker.
"""

from __future__ import annotations

from typing import Any

import verl.utils.model
from transformers import AutoModelForTokenClassification


def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """verl's own asks for flash_attention_2, whatever `override_config.attn_implementation` says."""
    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation="eager",
        trust_remote_code=trust_remote_code,
    )


verl.utils.model.load_valuehead_model = load_valuehead_model
