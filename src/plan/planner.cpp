// SPDX-License-Identifier: Apache-2.0
#include "thinwire/plan/planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/require.h"
#include "plan/parts.h"

namespace thinwire::plan {

namespace {

void require_not_negative(double value, const char* name) {
  require(std::isfinite(value) && value >= 0, name, "finite and >= 0", value);
}

void require_from_1(double value, const char* name) {
  require(std::isfinite(value) && value >= 1, name, "finite and >= 1", value);
}

bool has_hosts(const Network& network) {
  return network.ranks_per_host > 1 && network.hosts() > 1;
}

// Returns ten speeds per factor of ten, together with the present speed, in
// ascending order.
std::vector<double> cards_to_try(double gbps) {
  constexpr double kMost = 1e3;  // Gbit/s
  constexpr int kFactorsOfTen = 6, kPerFactor = 10;
  std::vector<double> cards{gbps};
  for (int i = 0; i <= kFactorsOfTen * kPerFactor; ++i)
    cards.push_back(kMost *
                    std::pow(10.0, -static_cast<double>(i) / kPerFactor));
  std::ranges::sort(cards);
  return cards;
}

// Finds the speed of the card at which the gain begins or ends. Because the
// gain may rise and fall with the speed, a scan from the present speed finds
// the nearest change, and bisection refines it.
double break_even(Way way, bool by_host, const Workload& work,
                  const Network& network, const Compute& compute) {
  if (way == Way::kExact || network.ranks == 1) return 0;
  const auto step = [&](Way which) {
    const Transport transport = transport_of(which, by_host, work, network);
    return [&, which, transport](double gbps) {
      Network other = network;
      other.gbps = gbps;
      return step_seconds(which, by_host, work, other, compute, transport);
    };
  };
  const auto own = step(way), exact = step(Way::kExact);
  const auto is_faster = [&](double gbps) { return own(gbps) < exact(gbps); };
  const std::vector<double> cards = cards_to_try(network.gbps);
  const auto here = std::ranges::find(cards, network.gbps);
  auto above = here;  // first speed without a gain
  if (is_faster(*here)) {
    above = std::find_if_not(here, cards.end(), is_faster);
    if (above == cards.end()) return std::numeric_limits<double>::infinity();
  } else {
    const auto below =
        std::find_if(std::make_reverse_iterator(here), cards.rend(), is_faster);
    if (below == cards.rend()) return 0;
    above = below.base();
  }
  double least = std::log(*(above - 1)), most = std::log(*above);
  for (int halving = 0; halving < 50; ++halving) {
    const double middle = (least + most) / 2;
    (is_faster(std::exp(middle)) ? least : most) = middle;
  }
  return std::exp(most);
}

}  // namespace

std::string_view to_string(Way way) noexcept {
  constexpr std::array<std::string_view, kNumWays> kNames{
      "exact",     "onebit_adam",  "zero_one_adam", "zero",
      "zero 8/8",  "zero 4/4",     "lean",          "outer 4/4",
      "torch ddp", "ddp_hook 4/4", "low rank"};
  const auto at = static_cast<std::size_t>(way);
  return at < kNames.size() ? kNames[at] : "unknown";
}

std::string name_of(const Prediction& prediction) {
  const std::string_view way = to_string(prediction.way);
  if (prediction.way != Way::kLowRank) return std::string(way);
  return fmt::format("{} {}", way, prediction.low_rank);
}

void Network::validate() const {
  require(ranks >= 1, "ranks", ">= 1", ranks);
  require(ranks_per_host >= 1 && ranks % ranks_per_host == 0, "ranks_per_host",
          fmt::format("a divisor of {} ranks", ranks), ranks_per_host);
  const auto positive = [](double value, const char* name) {
    require(std::isfinite(value) && value > 0, name, "finite and above 0",
            value);
  };
  positive(gbps, "gbps");
  positive(inner_bytes_per_second, "inner_bytes_per_second");
  require_not_negative(latency_seconds, "latency_seconds");
  require_not_negative(message_seconds, "message_seconds");
  require_not_negative(inner_latency_seconds, "inner_latency_seconds");
  require_not_negative(inner_message_seconds, "inner_message_seconds");
  require_not_negative(processor_seconds_per_byte,
                       "processor_seconds_per_byte");
  require_not_negative(inner_processor_seconds_per_byte,
                       "inner_processor_seconds_per_byte");
}

void Workload::validate() const {
  require(std::isfinite(parameters) && parameters >= 1, "parameters", ">= 1",
          parameters);
  require(dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
              dtype == DType::kBFloat16,
          "dtype", "fp32, fp16 or bf16", to_string(dtype));
  require_not_negative(forward_seconds, "forward_seconds");
  require_not_negative(backward_seconds, "backward_seconds");
  require_from_1(backwards, "backwards");
  require_not_negative(bucket_elements, "bucket_elements");
  require_not_negative(zero_bucket_bound, "zero_bucket_bound");
  require_from_1(steps_per_sync, "steps_per_sync");
  require_from_1(steps_per_outer_sync, "steps_per_outer_sync");
  require(low_rank >= 1 && low_rank <= 64, "low_rank", "in [1, 64]", low_rank);
  if (matrices) {
    require_from_1(*matrices, "matrices");
    require(*matrices <= parameters, "matrices",
            fmt::format("at most the parameters, which are {}", parameters),
            *matrices);
  }
  require(
      steps_per_variance_step == 0 || (std::isfinite(steps_per_variance_step) &&
                                       steps_per_variance_step >= 1),
      "steps_per_variance_step", "0, or finite and >= 1",
      steps_per_variance_step);
  if (!run) return;
  require(run->steps >= 1 && run->steps <= RunStages::kMostSteps, "run.steps",
          fmt::format("in [1, {}]", RunStages::kMostSteps), run->steps);
  require(run->freeze_step >= 1, "run.freeze_step", ">= 1", run->freeze_step);
  require(run->first_low_rank_steps.value_or(0) >= 0,
          "run.first_low_rank_steps", ">= 0",
          run->first_low_rank_steps.value_or(0));
  const int bits = run->warmup_bits;  // the bits of a Way
  require(bits == 0 || bits == 4 || bits == 8, "run.warmup_bits", "0, 4 or 8",
          bits);
}

Prediction predict(Way way, bool by_host, const Workload& work,
                   const Network& network, const Compute& compute) {
  network.validate();
  work.validate();
  require(!by_host || has_hosts(network), "by_host",
          "false without several hosts of several ranks each", by_host);
  require(!by_host || way != Way::kTorchDdp, "by_host", "false for torch's DDP",
          by_host);
  return {.way = way,
          .is_by_host = by_host,
          .run = work.run ? std::optional(planned_run(way, by_host, work,
                                                      network, compute))
                          : std::nullopt,
          .step_seconds = step_seconds(way, by_host, work, network, compute),
          .traffic = traffic_of(way, by_host, work, network),
          .memory = memory_of(way, by_host, work, network),
          .break_even_gbps = break_even(way, by_host, work, network, compute),
          .steps_per_exchange = way == Way::kZeroOneAdam ? work.steps_per_sync
                                : way == Way::kOuter ? work.steps_per_outer_sync
                                                     : 1,
          .steps_per_variance_step =
              way == Way::kZeroOneAdam ? work.steps_per_variance_step : 0,
          .low_rank = way == Way::kLowRank ? work.low_rank : 0,
          .has_factors = way == Way::kLowRank && factor_columns(work) > 0,
          .has_spare_core = work.has_spare_core,
          .parameters = work.parameters};
}

std::vector<Prediction> plan(const Workload& work, const Network& network,
                             const Compute& compute) {
  std::vector<Prediction> all;
  for (int i = 0; i < kNumWays; ++i) {
    const Way way = static_cast<Way>(i);
    all.push_back(predict(way, false, work, network, compute));
    if (has_hosts(network) && way != Way::kTorchDdp)
      all.push_back(predict(way, true, work, network, compute));
  }
  return all;
}

}  // namespace thinwire::plan
