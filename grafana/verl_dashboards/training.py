"""Training health: does the policy learn, and are its updates sound?"""

from __future__ import annotations

from verl_dashboards import overview, variables
from verl_dashboards.board import Board, Section
from verl_dashboards.panels import Common, density, frontier, lines
from verl_dashboards.queries import BY_RUN, RUNS, Query, limit, signal

reward = lines(
    Common(
        title="Reward and score",
        question="Does the policy get better at what is rewarded? Reward is the score less the KL penalty, "
        "mean over a step's samples; "
        "the limit is half of what was gained.",
        size=(8, 8),
        queries=[
            Query(signal("reward"), "reward, {{experiment}}"),
            Query(signal("score"), "score, {{experiment}}"),
            Query(signal("reward", "verl_signal_baseline", stat="mean"), "own start, {{experiment}}"),
            Query(limit("VerlRewardCollapse"), "lower limit, {{experiment}}"),
        ],
        alerts=["VerlRewardCollapse", "VerlNoLearningSignal"],
    )
)

validation = lines(
    Common(
        title="Validation",
        question="Is the gain real? Core metrics on the validation set, each from its last measurement until "
        "the next; "
        "dotted: the run's first measurement.",
        size=(8, 8),
        queries=[
            Query(
                f'max by (project, experiment, data_source, variable, stat, n) (verl_validation{{tier="core",{RUNS}}})',
                "{{data_source}} {{variable}} {{stat}}@{{n}}, {{experiment}}",
            ),
            Query(f"max {BY_RUN} (run:verl_validation_avg:first{{{RUNS}}})", "own start, {{experiment}}"),
        ],
        alerts=["VerlRewardHacking"],
    )
)

frontier_of_reward = frontier(
    Common(
        title="Reward against KL",
        question="What does distance from the reference buy? Up is good, right is expensive; reward that falls "
        "as KL grows is "
        "over-optimisation (https://arxiv.org/abs/2210.10760). Means of the window, one point a scrape.",
        size=(8, 8),
        queries=[
            Query(signal("reference_kl", "verl_signal_window", stat="mean"), kind="table_range"),
            Query(signal("reward", "verl_signal_window", stat="mean"), kind="table_range"),
        ],
        alerts=["VerlRewardHacking", "VerlKLExplosion"],
    ),
    "KL to the reference, nats per token",
    "short",
)

reference_kl = lines(
    Common(
        title="KL to the reference, and its limits",
        question="Has the policy snapped back onto the reference, or run away from it? Last step, mean and "
        "extremes of the window.",
        size=(8, 8),
        queries=[
            Query(signal("reference_kl"), "{{experiment}}"),
            Query(signal("reference_kl", "verl_signal_window", stat="mean"), "window mean, {{experiment}}"),
            Query(signal("reference_kl", "verl_signal_peak"), "peak of the window mean, {{experiment}}"),
            Query(limit("VerlKLCollapse"), "lower limit, {{experiment}}"),
            Query(limit("VerlKLExplosion"), "upper limit, {{experiment}}"),
        ],
        alerts=["VerlKLCollapse", "VerlKLExplosion"],
    ),
    logarithmic=True,
)

update_kl = lines(
    Common(
        title="KL of the update",
        question="How far does one step move the policy? An estimate that can be negative; sound runs stay "
        "within ±0.012 nats.",
        size=(8, 8),
        queries=[
            Query(signal("update_kl"), "{{experiment}}"),
            Query(limit("VerlUpdateKLHigh"), "upper limit, {{experiment}}"),
        ],
        alerts=["VerlUpdateKLHigh"],
    )
)

entropy = lines(
    Common(
        title="Entropy, and its limits",
        question="Does the policy still explore? Towards zero it repeats itself, far above its start it is noise.",
        size=(8, 8),
        queries=[
            Query(signal("entropy"), "{{experiment}}"),
            Query(signal("entropy", "verl_signal_baseline", stat="mean"), "own start, {{experiment}}"),
            Query(signal("entropy", "verl_signal_trough"), "trough of the window mean, {{experiment}}"),
            Query(limit("VerlEntropyCollapse"), "lower limit, {{experiment}}"),
            Query(limit("VerlEntropyExplosion"), "upper limit, {{experiment}}"),
        ],
        alerts=["VerlEntropyCollapse", "VerlEntropyExplosion"],
    ),
    minimum=0,
)

clipping = lines(
    Common(
        title="Clip fraction",
        question="How many tokens want to move further than the trust region allows? GSPO clips 0.15 by "
        "design, token-level losses under 0.03.",
        size=(8, 8),
        queries=[
            Query(signal("clip_fraction"), "{{experiment}}"),
            Query(limit("VerlClipFractionHigh"), "upper limit, {{experiment}}"),
        ],
        unit="percentunit",
        alerts=["VerlClipFractionHigh"],
    ),
    minimum=0,
)

losses = lines(
    Common(
        title="Policy loss",
        question="Is the loss finite and does it stay in its range? Its level says little; a jump or a gap "
        "(NaN) says a lot.",
        size=(8, 8),
        queries=[Query(signal("policy_loss"), "{{experiment}}")],
        alerts=["VerlNonFiniteValue"],
    )
)

advantages = lines(
    Common(
        title="Spread of the advantages",
        question="Is there anything to learn from? Zero when every answer to a prompt gets the same score.",
        size=(8, 8),
        queries=[
            Query(signal("advantage_spread"), "{{experiment}}"),
            Query(limit("VerlNoLearningSignal"), "lower limit, {{experiment}}"),
        ],
        alerts=["VerlNoLearningSignal"],
    ),
    minimum=0,
)

lengths = lines(
    Common(
        title="Response and prompt length",
        question="Do the answers grow or shrink? Longest and mean of a step's samples.",
        size=(8, 8),
        queries=[
            Query(
                f'max by (project, experiment, stat) (verl_response_length_tokens{{stat=~"mean|max",{RUNS}}})',
                "response {{stat}}, {{experiment}}",
            ),
            Query(f'max {BY_RUN} (verl_prompt_length_tokens{{stat="mean",{RUNS}}})', "prompt mean, {{experiment}}"),
        ],
        unit="short",
        alerts=["VerlResponseLengthSaturated"],
    ),
    minimum=0,
)

saturation = lines(
    Common(
        title="Response length over its maximum",
        question="Are answers cut off? Mean response over the configured maximum; never verl's clip_ratio, "
        "which trainer V1 computes on padding.",
        size=(8, 8),
        queries=[
            Query(signal("response_length_fraction"), "{{experiment}}"),
            Query(limit("VerlResponseLengthSaturated"), "upper limit, {{experiment}}"),
        ],
        unit="percentunit",
        alerts=["VerlResponseLengthSaturated"],
    ),
    minimum=0,
    maximum=1,
)

rewards_of_samples = density(
    Common(
        title="Distribution of the rewards",
        question="Is a mean the whole truth? Samples by their reward: two bands that drift apart are prompts that are "
        "solved or never solved, one band that learns nothing more.",
        size=(12, 8),
        queries=[
            Query(
                f"sum by (le) (increase(verl_reward_distribution_bucket{{{RUNS}}}[$__rate_interval]))",
                "{{le}}",
                kind="heatmap",
            )
        ],
        unit="short",
        alerts=["VerlNoLearningSignal", "VerlRewardCollapse"],
    ),
    buckets=True,
    minimum=0,
)

lengths_of_samples = density(
    Common(
        title="Distribution of the response lengths",
        question="Who makes the step long? Samples by the length of their response, in tokens.",
        size=(12, 8),
        queries=[
            Query(
                f"sum by (le) (increase(verl_response_length_distribution_tokens_bucket{{{RUNS}}}[$__rate_interval]))",
                "{{le}}",
                kind="heatmap",
            )
        ],
        unit="short",
        alerts=["VerlResponseLengthSaturated"],
    ),
    buckets=True,
    minimum=0,
)

aborted = lines(
    Common(
        title="Aborted rollouts",
        question="How many samples came back empty?",
        size=(8, 8),
        queries=[
            Query(signal("aborted_fraction"), "{{experiment}}"),
            Query(limit("VerlAbortedRollouts"), "upper limit, {{experiment}}"),
        ],
        unit="percentunit",
        alerts=["VerlAbortedRollouts"],
    ),
    minimum=0,
)

mismatch = lines(
    Common(
        title="Rollout against training probabilities",
        question="Do the rollout engine and the trainer compute the same policy? Mean difference of a token's "
        "probability: "
        "0.005 is normal, above 0.01 look at precisions and versions.",
        size=(12, 8),
        queries=[
            Query(signal("rollout_mismatch"), "{{experiment}}"),
            Query(limit("VerlRolloutMismatch"), "upper limit, {{experiment}}"),
        ],
        alerts=["VerlRolloutMismatch"],
    ),
    minimum=0,
)

staleness = lines(
    Common(
        title="Staleness",
        question="How many model versions old is the oldest sample that the step learns from?",
        size=(12, 8),
        queries=[
            Query(signal("staleness"), "{{experiment}}"),
            Query(limit("VerlStaleRollouts"), "upper limit, {{experiment}}"),
        ],
        unit="none",
        alerts=["VerlStaleRollouts"],
    ),
    minimum=0,
)

sample_size = lines(
    Common(
        title="Effective sample size",
        question="How much of the batch still counts after the importance weights? Under 0.3 a few samples decide "
        "the update.",
        size=(12, 8),
        queries=[
            Query(signal("importance_ess"), "{{experiment}}"),
            Query(limit("VerlImportanceWeightsDegenerate"), "lower limit, {{experiment}}"),
        ],
        unit="percentunit",
        alerts=["VerlImportanceWeightsDegenerate"],
    ),
    minimum=0,
)

weights = lines(
    Common(
        title="Importance weights",
        question="How far are rollout and training policy apart, token by token? The mean should stay near "
        "one; extremes are clipped.",
        size=(12, 8),
        queries=[
            Query(
                f'max by (project, experiment, stat) (verl_rollout_corr_rollout_is{{stat=~"mean|min|max",{RUNS}}})',
                "{{stat}}, {{experiment}}",
            ),
        ],
        alerts=["VerlImportanceWeightsDegenerate"],
    ),
    minimum=0,
)

explained = lines(
    Common(
        title="Explained variance of the critic",
        question="Is the critic better than a constant? One is perfect, below zero it harms.",
        size=(8, 8),
        queries=[
            Query(signal("explained_variance"), "{{experiment}}"),
            Query(limit("VerlValueFunctionUseless"), "lower limit, {{experiment}}"),
        ],
        alerts=["VerlValueFunctionUseless"],
    )
)

value_loss = lines(
    Common(
        title="Value loss",
        question="Does the critic still learn?",
        size=(8, 8),
        queries=[Query(signal("value_loss"), "{{experiment}}")],
        alerts=["VerlValueFunctionUseless"],
    ),
    minimum=0,
)

critic_gradient = lines(
    Common(
        title="Updates of the critic",
        question="Are they sound? Gradient norm before clipping, and the share of predictions clipped.",
        size=(8, 8),
        queries=[
            Query(f"max {BY_RUN} (verl_critic_grad_norm{{{RUNS}}})", "gradient norm, {{experiment}}"),
            Query(f"max {BY_RUN} (verl_critic_vf_clipfrac{{{RUNS}}})", "clip fraction, {{experiment}}"),
        ],
        alerts=["VerlValueFunctionUseless"],
    ),
    minimum=0,
)

loss = lines(
    Common(
        title="Loss",
        question="Does the model learn the data?",
        size=(24, 8),
        queries=[
            Query(signal("loss"), "training, {{experiment}}"),
            Query(f"max {BY_RUN} (verl_val_loss{{{RUNS}}})", "validation, {{experiment}}"),
        ],
        alerts=["VerlNonFiniteValue"],
    )
)

learning_rate = lines(
    Common(
        title="Learning rate",
        question="Where is the schedule? Of the actor, the critic, or the model of an SFT run.",
        size=(8, 8),
        queries=[
            Query(f"max {BY_RUN} (verl_actor_lr{{{RUNS}}})", "actor, {{experiment}}"),
            Query(f"max {BY_RUN} (verl_critic_lr{{{RUNS}}})", "critic, {{experiment}}"),
            Query(f"max {BY_RUN} (verl_train_lr{{{RUNS}}})", "model, {{experiment}}"),
        ],
        unit="sci",
    ),
    minimum=0,
)

seen = lines(
    Common(
        title="Signals the alerts can see",
        question="Which alerts are blind? Steps at which each health signal was logged; one that stops rising "
        "is missing.",
        size=(8, 8),
        queries=[
            Query(f"max by (project, experiment, signal) (verl_signal_steps{{{RUNS}}})", "{{signal}}, {{experiment}}")
        ],
        unit="none",
        alerts=["VerlSignalMissing"],
    ),
    minimum=0,
    decimals=0,
)

anything = lines(
    Common(
        title="Any verl key: $key",
        question="Anything else that verl logs: pick the key at the top of the board.",
        size=(24, 8),
        queries=[Query(f'{{__name__=~"verl_.+",key="$key",{RUNS}}}', "{{experiment}}")],
    )
)

BOARD = Board(
    uid="verl-training",
    title="verl: training health",
    question="Does the policy learn, and are its updates sound?",
    sections=[
        Section("Does it learn? (RL runs; an SFT run logs none of these)", [reward, validation, frontier_of_reward]),
        Section("Does it stay a policy? (RL runs)", [reference_kl, update_kl, entropy]),
        Section("Are the updates sound? (RL runs)", [clipping, losses, advantages]),
        Section("Every run", [overview.gradient, learning_rate, seen]),
        Section("Responses (RL runs)", [lengths, saturation, aborted]),
        Section("Every sample (RL runs)", [rewards_of_samples, lengths_of_samples]),
        Section(
            "Do rollout and training agree? (RL runs with rollout.calculate_log_probs, and trainer V1 for the "
            "staleness)",
            [mismatch, staleness],
        ),
        Section(
            "Rollout correction (RL runs with algorithm.rollout_correction)", [sample_size, weights], collapsed=True
        ),
        Section("Critic (PPO with a critic)", [explained, value_loss, critic_gradient], collapsed=True),
        Section("Supervised fine-tuning (SFT runs)", [loss]),
        Section("Anything else", [anything]),
    ],
    variables=[variables.key("perf/max_memory_allocated_gb")],
)
