// SPDX-License-Identifier: Apache-2.0
// 1-bit LAMB and 0/1 Adam, set up so that a few steps go through all phases.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "optim/support.h"

namespace thinwire::test {

struct LowBitCase {
  std::string name;
  MakeOptimizer make;
  std::int64_t steps = 0;  ///< Until every phase was there, and some more.
};

struct TwoStages {
  optim::ExchangeOptions exchange{};
  std::int64_t freeze_step = 3;
  std::int64_t var_freeze_step = 6;
  std::size_t groups = 2;  ///< Weights of the second one decay.
};

/// All five optimizers; both exact ones come first. 0/1 Adam has syncs after 1
/// (twice), 2 (twice) and then 4 steps.
inline std::vector<LowBitCase> all_optimizers(const TwoStages& stages) {
  const auto& exchange = stages.exchange;
  const optim::FreezeOptions freeze{.step = stages.freeze_step};
  const optim::CompressionOptions compression{.exchange = exchange};
  const auto grouped = [&](auto o) {
    o.learning_rate = 0.01;
    o.groups.resize(stages.groups);
    if (stages.groups > 1) o.groups[1].weight_decay = 0.1;
    return o;
  };
  return {{"adam", exact_adam(grouped(optim::AdamOptions{}), exchange), 4},
          {"lamb", exact_lamb(grouped(optim::LambOptions{}), exchange), 4},
          {"onebit_adam",
           onebit_adam(grouped(optim::OnebitAdamOptions{
               .freeze = freeze, .compression = compression})),
           stages.freeze_step + 2},
          {"onebit_lamb",
           onebit_lamb(grouped(optim::OnebitLambOptions{
               .freeze = freeze, .compression = compression})),
           stages.freeze_step + 2},
          {"zero_one_adam",
           zero_one_adam(grouped(optim::ZeroOneAdamOptions{
               .var_freeze_step = stages.var_freeze_step,
               .var_update_scaler = 2,
               .local_step_scaler = 2,
               .local_step_clipper = 4,
               .compression = compression})),
           stages.var_freeze_step + 6}};
}

/// An optimizer of which a test sets one thing.
template <class Value>
struct OpenCase {
  std::string name;
  std::function<MakeOptimizer(const Value&)> make;
  std::int64_t steps = 0;  ///< Until every phase was there, and some more.
};

/// `set(options, value)` sets it.
template <class Value, class Options, class Set>
OpenCase<Value> open_case(std::string name, MakeOptimizer (*make)(Options),
                          const Options& options, Set set,
                          std::int64_t steps = 0) {
  return {std::move(name),
          [=](const Value& value) {
            Options o = options;
            set(o, value);
            return make(o);
          },
          steps};
}

/// Exact to step 3; group 1 is exact for ever.
inline optim::OnebitAdamOptions mixed_onebit_adam() {
  optim::OnebitAdamOptions o{.learning_rate = 0.02, .freeze = {.step = 3}};
  o.groups.resize(2);
  o.groups[1].non_freeze = true;
  o.groups[0].exp_avg_mask = every_third_masked(grouped_layout(), 0);
  o.compression.exchange.max_grad_norm = 1;
  o.compression.exchange.bucket_elements = 900;
  return o;
}

/// Exact to step 3, or until it freezes by itself.
inline optim::OnebitLambOptions short_onebit_lamb() {
  optim::OnebitLambOptions o{.learning_rate = 0.02, .freeze = {.step = 3}};
  o.groups.resize(2);
  o.groups[1].beta1 = 0.8;
  o.groups[1].weight_decay = 0.1;
  o.groups[0].exp_avg_mask = every_third_masked(grouped_layout(), 0);
  o.compression.exchange.max_grad_norm = 1;
  o.compression.exchange.bucket_elements = 900;
  return o;
}

/// Variance steps 1, 2, 4, 6, 1-bit steps 3 and 5, syncs 7 to 10, 12, 14, then
/// every fourth, with local steps in between.
inline optim::ZeroOneAdamOptions short_zero_one_adam() {
  optim::ZeroOneAdamOptions o{.learning_rate = 0.01,
                              .var_freeze_step = 6,
                              .var_update_scaler = 2,
                              .local_step_scaler = 4,
                              .local_step_clipper = 4};
  o.groups.resize(2);
  o.groups[1].beta1 = 0.8;
  o.groups[1].weight_decay = 0.1;
  o.groups[0].exp_avg_mask = every_third_masked(grouped_layout(), 0);
  o.compression.exchange.max_grad_norm = 1;
  o.compression.exchange.bucket_elements = 900;
  return o;
}

/// All with grouped_layout(), and with the size of buckets as given.
inline std::vector<OpenCase<std::size_t>> low_bit_cases_of_buckets() {
  const optim::OnebitAdamOptions automatic_adam{
      .beta1 = 0.5, .freeze = {.step = optim::kAutoFreeze, .total_steps = 20}};
  optim::OnebitAdamOptions adam_8_bits = mixed_onebit_adam();
  adam_8_bits.freeze.warmup_bits = 8;
  optim::OnebitAdamOptions adam_4_bits = mixed_onebit_adam();
  adam_4_bits.freeze.warmup_bits = 4;
  adam_4_bits.compression.residual_dtype = DType::kBFloat16;
  optim::OnebitLambOptions automatic = short_onebit_lamb();
  automatic.freeze.step = optim::kAutoFreeze;
  automatic.beta1 = 0.5;
  automatic.groups[1].beta1 = 0.5;
  automatic.freeze.total_steps = 20;  // freezes at a fifth of them
  optim::OnebitLambOptions lamb_bf16 = short_onebit_lamb();
  lamb_bf16.compression.residual_dtype = DType::kBFloat16;
  lamb_bf16.compression.exchange.lagged_clipping = true;
  optim::OnebitLambOptions lamb_8_bits = short_onebit_lamb();
  lamb_8_bits.freeze.warmup_bits = 8;
  optim::OnebitLambOptions lamb_4_bits = lamb_bf16;
  lamb_4_bits.freeze.warmup_bits = 4;
  optim::ZeroOneAdamOptions zero_one_bf16 = short_zero_one_adam();
  zero_one_bf16.compression.residual_dtype = DType::kBFloat16;
  optim::ZeroOneAdamOptions zero_one_8_bits = short_zero_one_adam();
  zero_one_8_bits.warmup_bits = 8;
  const auto open = [](const char* name, auto make, const auto& options,
                       std::int64_t steps) {
    const auto set = [](auto& o, std::size_t bucket) {
      o.compression.exchange.bucket_elements = bucket;
    };
    return open_case<std::size_t>(name, make, options, set, steps);
  };
  return {open("zero_one_adam_8_bits", zero_one_adam, zero_one_8_bits, 9),
          open("onebit_adam", onebit_adam, mixed_onebit_adam(), 7),
          open("onebit_adam_auto", onebit_adam, automatic_adam, 9),
          open("onebit_adam_8_bits", onebit_adam, adam_8_bits, 6),
          open("onebit_adam_4_bits_bf16", onebit_adam, adam_4_bits, 6),
          open("onebit_lamb", onebit_lamb, short_onebit_lamb(), 7),
          open("onebit_lamb_auto", onebit_lamb, automatic, 9),
          open("onebit_lamb_bf16", onebit_lamb, lamb_bf16, 6),
          open("onebit_lamb_8_bits", onebit_lamb, lamb_8_bits, 6),
          open("onebit_lamb_4_bits_bf16", onebit_lamb, lamb_4_bits, 6),
          open("zero_one_adam", zero_one_adam, short_zero_one_adam(), 21),
          open("zero_one_adam_bf16", zero_one_adam, zero_one_bf16, 13)};
}

/// The same and 1-bit Adam under the next step. Where it is skipped, the
/// parameters of its ranks become equal.
inline std::vector<OpenCase<std::size_t>> resumed_cases_of_buckets() {
  std::vector<OpenCase<std::size_t>> all = low_bit_cases_of_buckets();
  optim::OnebitAdamOptions under = mixed_onebit_adam();
  under.compression.exchange.under_next_step = true;
  const auto set = [](auto& o, std::size_t bucket) {
    o.compression.exchange.bucket_elements = bucket;
  };
  all.push_back(open_case<std::size_t>("onebit_adam_under_next_step",
                                       onebit_adam, under, set, 9));
  return all;
}

inline std::vector<LowBitCase> with_buckets_of_900(
    const std::vector<OpenCase<std::size_t>>& open_cases) {
  std::vector<LowBitCase> all;
  for (const auto& open : open_cases)
    all.push_back({open.name, open.make(900), open.steps});
  return all;
}
inline std::vector<LowBitCase> low_bit_cases() {
  return with_buckets_of_900(low_bit_cases_of_buckets());
}
inline std::vector<LowBitCase> resumed_cases() {
  return with_buckets_of_900(resumed_cases_of_buckets());
}

}  // namespace thinwire::test
