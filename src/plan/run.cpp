// SPDX-License-Identifier: Apache-2.0
// Adds up a whole run from the steps of its stages.
#include <algorithm>
#include <map>
#include <vector>

#include "optim/zero_one_schedule.h"
#include "plan/parts.h"
#include "thinwire/plan/planner.h"

namespace thinwire::plan {

namespace {

/// Steps with the same prediction.
struct Stage {
  Way way;
  Workload work;
  std::int64_t steps;
};

/// Numbers of 0/1 Adam's steps.
struct ZeroOneSteps {
  std::int64_t variance = 0;  // exact steps before the freeze
  std::int64_t momentum = 0;  // compressed steps before the freeze
  std::int64_t syncs = 0;     // after the freeze
  std::map<std::int64_t, std::int64_t> after{};  // by interval between syncs
};

ZeroOneSteps zero_one_steps(const RunStages& run) {
  const optim::ZeroOneStages& stages = run.zero_one;
  optim::ZeroOneSchedule schedule(
      {.var_freeze_step = stages.var_freeze_step,
       .var_update_scaler = stages.var_update_scaler,
       .local_step_scaler = stages.local_step_scaler,
       .local_step_clipper = stages.local_step_clipper});
  ZeroOneSteps count;
  for (std::int64_t step = 1; step <= run.steps; ++step) {
    if (step > run.zero_one.var_freeze_step) {
      ++count.after[schedule.local_interval()];
      if (schedule.syncs(step)) ++count.syncs;
      schedule.local_step_taken();
    } else if (schedule.updates_variance(step)) {
      ++count.variance;
      schedule.variance_updated();
    } else {
      ++count.momentum;
    }
  }
  return count;
}

// Returns the workload of warm-up steps, which differ from compressed steps in
// their bits and their update.
Workload of_warmup(Workload work, int bits, bool during_backward) {
  work.onebit_bits = bits;
  work.sends_during_backward = during_backward;
  return work;
}

// `bits` are the bits of variance steps, or 0 for exact steps.
std::vector<Stage> zero_one_stages(const ZeroOneSteps& count, int bits,
                                   const Workload& work) {
  Workload variance = work;
  variance.steps_per_variance_step = 1;
  std::vector<Stage> stages{{Way::kZeroOneAdam, variance, count.variance},
                            {Way::kOnebitAdam, work, count.momentum}};
  if (bits != 0)
    stages[0] = {Way::kOnebitAdam, of_warmup(work, bits, true), count.variance};
  for (const auto& [interval, steps] : count.after) {
    Workload after = work;
    after.steps_per_variance_step = 0;
    after.steps_per_sync = static_cast<double>(interval);
    stages.push_back({Way::kZeroOneAdam, after, steps});
  }
  return stages;
}

Way zero_over(int bits) {
  for (const Way way : {Way::kZero, Way::kZero4, Way::kZero8})
    if (zero_bits(way) == bits) return way;
  return Way::kZero;  // validate() rejects other numbers
}

// Returns the workload of ZeRO stage 1, which sums the backwards of a window
// before it sends.
Workload of_one_exchange(Workload work) {
  work.forward_seconds +=
      (work.backwards - 1) * (work.forward_seconds + work.backward_seconds);
  work.backwards = 1;
  return work;
}

}  // namespace

PlannedRun planned_run(Way way, bool by_host, const Workload& work,
                       const Network& network, const Compute& compute) {
  const RunStages& run = work.run.value();
  PlannedRun planned;
  std::vector<Stage> stages;
  if (way == Way::kZeroOneAdam) {
    const ZeroOneSteps count = zero_one_steps(run);
    planned.exact_steps = count.variance;
    planned.compressed_steps = count.momentum + count.syncs;
    if (network.ranks > 1) planned.warmup_bits = run.zero_one.warmup_bits;
    stages = zero_one_stages(count, planned.warmup_bits, work);
  } else if (way == Way::kOuter || way == Way::kOnebitAdam ||
             way == Way::kLean) {
    planned.exact_steps = std::min(run.freeze_step, run.steps);
    if (network.ranks > 1) planned.warmup_bits = run.warmup_bits;
    const std::int64_t after = run.steps - planned.exact_steps;
    planned.compressed_steps =
        way == Way::kOuter
            ? static_cast<std::int64_t>(static_cast<double>(after) /
                                        work.steps_per_outer_sync)
            : after;
    Stage first{Way::kExact, work, planned.exact_steps};
    if (way == Way::kLean) {
      first.way = zero_over(planned.warmup_bits);
      first.work = of_one_exchange(work);
    } else if (planned.warmup_bits != 0) {
      first.way = Way::kOnebitAdam;
      first.work = of_warmup(work, run.warmup_bits, way == Way::kOnebitAdam);
    }
    stages = {first, {way, work, after}};
  } else {
    planned.exact_steps = run.steps;
    const std::int64_t first =
        way == Way::kLowRank
            ? std::min(run.first_low_rank_steps.value_or(
                           optim::first_low_rank_steps_of_run(run.steps)),
                       run.steps)
            : 0;
    stages = {{Way::kDdpHook, work, first}, {way, work, run.steps - first}};
  }
  planned.local_steps =
      run.steps - planned.exact_steps - planned.compressed_steps;
  const Compute of_codes =
      quantizing(compute, compute.dequantize + compute.exact_update);
  for (const Stage& stage : stages) {
    const auto steps = static_cast<double>(stage.steps);
    planned.seconds +=
        steps * step_seconds(stage.way, by_host, stage.work, network,
                             stage.work.onebit_bits == 1 ? compute : of_codes);
    planned.bytes +=
        steps * traffic_of(stage.way, by_host, stage.work, network).bytes;
  }
  return planned;
}

}  // namespace thinwire::plan
