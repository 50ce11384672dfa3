"""Demo: one training in three child processes, the second and third under a hard memory limit.

job.py          the training: MONAI's 3D U-Net learns to take noise off a brain MRI volume
trainer.py      one child process: trains, and reports each step as a line of JSON
digests.py      digests of weights
limits.py       a hard memory limit around a command: memory cgroup or RLIMIT_DATA
limited_run.py  starts a child under a limit and collects what it reports
main.py         the three trials, the limit and the budget between them
show.py         the table

With `--weights` it is a language model whose weights, gradients and optimizer states are three times the limit:

weights_job.py      the training: a model of bytes reads Python's own sources
weights_trainer.py  one child process
weights.py          the four trials, and the limit
weights_table.py    the table
"""
