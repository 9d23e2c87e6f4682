"""What a run needs on disk: a tiny Qwen2 model, its byte tokenizer, and the arithmetic data sets."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pandas
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEST_PROBLEMS = 40
SFT_COPIES = 4  # an epoch holds a batch of 512
WARM_UP_STEPS = 60
WARM_UP_BATCH = 32


def write(folder: Path) -> None:
    """Write `model/`, `rl_{train,test}.parquet` and `sft_{train,test}.parquet` into a new folder."""
    folder.mkdir()
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    problems = arithmetic()
    train, test = problems[TEST_PROBLEMS:], problems[:TEST_PROBLEMS]
    model = tiny_model(tokenizer)
    warm_up(model, tokenizer, train)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    for split, rows in (("train", train), ("test", test)):
        pandas.DataFrame([rl_row(*row, split, index) for index, row in enumerate(rows)]).to_parquet(
            folder / f"rl_{split}.parquet"
        )
        pandas.DataFrame(
            {"messages": [chat(question, answer) for _, question, answer in rows] * SFT_COPIES}
        ).to_parquet(folder / f"sft_{split}.parquet")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and three special ones."""
    special = [PAD, START, END]
    vocabulary = {token: index for index, token in enumerate(special + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, padding_side="left")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """Two layers, about 100,000 parameters, random weights."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


def arithmetic() -> list[tuple[str, str, str]]:
    """Every sum and difference of two digits, shuffled: (data source, question, answer)."""
    problems = []
    for a in range(10):
        for b in range(10):
            problems.append(("arithmetic/add", f"{a}+{b}=", str(a + b)))
            problems.append(("arithmetic/subtract", f"{a}-{b}=", str(a - b)))
    random.Random(0).shuffle(problems)
    return problems


def chat(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def rl_row(source: str, question: str, answer: str, split: str, index: int) -> dict[str, Any]:
    """A row in the columns verl's RLHFDataset and reward managers read."""
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": split, "index": index},
    }


def warm_up(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: list[tuple[str, str, str]]) -> None:
    """Teach the model to answer in numbers, most of them wrong: like any policy, it comes to RL already trained."""
    conversations = [chat(question, answer) for _, question, answer in problems]
    batch = tokenizer.apply_chat_template(conversations, padding=True, return_tensors="pt", return_dict=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(WARM_UP_STEPS):
        rows = torch.randperm(len(problems))[:WARM_UP_BATCH]
        loss = model(**{name: tensor[rows] for name, tensor in batch.items()}, labels=labels[rows]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
