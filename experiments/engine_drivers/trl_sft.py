"""TRL's SFTTrainer. Its loss is of tokens: here it is that of the tiny network."""

from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from experiments.engine_drivers.hugging_face import CpuScaling, options, trained
from experiments.engine_drivers.job import Job, Result, loss_of, tiny

ENDS = ("eos_token", "pad_token")


class LanguageModel(LlamaForCausalLM):  # type: ignore[misc]
    """A language model as the trainer's constructor wants it, with the network that is trained."""

    def __init__(self) -> None:
        sizes = {"hidden_size": 4, "intermediate_size": 4, "num_attention_heads": 1}
        super().__init__(LlamaConfig(vocab_size=2, num_hidden_layers=0, **sizes))
        for parameter in self.parameters():
            parameter.requires_grad = (
                False  # it is not used, and DDP waits for each gradient
            )
        self.tiny = tiny()

    def forward(self, inputs: Tensor, labels: Tensor, **_: Any) -> Tensor:
        return loss_of(self.tiny, (inputs, labels))


class CpuTrainer(CpuScaling, SFTTrainer):  # type: ignore[misc]
    """An SFTTrainer with another loss."""

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], **_: Any) -> Any:
        return model(**inputs)


def train(job: Job) -> Result:
    class JobTrainer(CpuTrainer):
        pass

    JobTrainer.job = job
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, **dict.fromkeys(ENDS, "b")
    )
    tokens = Dataset.from_dict(
        {"input_ids": [[0, 1]], "labels": [[0, 1]]}
    )  # it is not trained on
    arguments = SFTConfig(bf16=False, **options(job))
    return trained(
        job,
        JobTrainer,
        LanguageModel(),
        args=arguments,
        train_dataset=tokens,
        processing_class=tokenizer,
    )
