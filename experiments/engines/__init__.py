"""Training engines, run as they are in fp16 on the CPU: do they follow the loss-scaling protocol?

`drivers` has one function per engine, `checks` has what each must satisfy, and `python -m experiments.engines
NAME ...` runs the named engines and writes their rows to `experiments/data/cpu/engines.jsonl`. Install
the packages first, in an environment of their own:

    pip install accelerate transformers lightning mmengine megatron-core deepspeed msgpack
"""
