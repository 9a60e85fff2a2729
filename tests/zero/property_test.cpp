// SPDX-License-Identifier: Apache-2.0
// Any layout, world, bucket size, dtype, stage and order of gradients: what is
// averaged is what plain loops over all ranks' gradients give, bit for bit.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <chrono>

#include "thinwire/optim/data_parallel.h"
#include "thinwire/precision/mixed_precision.h"
#include "zero/any_zero.h"

namespace thinwire::zero {
namespace {

using test::any_zero;
using test::AnyZero;
using test::gradient;
using test::Seen;

constexpr int kSteps = test::kAnyZeroSteps;

std::vector<float> as(const std::vector<float>& values, DType dtype) {
  return test::floats_of(test::rounded(values, dtype).view());
}

std::vector<float> plus(std::vector<float> sum,
                        const std::vector<float>& values, DType dtype) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  return as(sum, dtype);
}

// One rank after the other in fp32; of 16-bit values the mean.
std::vector<float> reduced(const std::vector<std::vector<float>>& of_ranks,
                           bool is_mean) {
  std::vector<float> sum = of_ranks[0];
  for (std::size_t r = 1; r < of_ranks.size(); ++r)
    sum = plus(std::move(sum), of_ranks[r], DType::kFloat32);
  // In a group of one there is nothing to divide.
  const float share = 1.0f / static_cast<float>(of_ranks.size());
  if (is_mean && of_ranks.size() > 1)
    for (float& value : sum) value *= share;
  return sum;
}

// Returns the sum of all ranks' gradients in fp32, or their mean in 16 bits.
std::vector<float> plain_window(const AnyZero& drawn, int step) {
  const ZeroOptions& o = drawn.options;
  const bool is_16_bit = o.dtype != DType::kFloat32;
  const DType accumulated =
      drawn.backwards == 1 ? o.dtype : o.accumulation_dtype;
  std::vector<std::vector<float>> of_ranks;
  if (o.stage == 1) {
    for (int r = 0; r < drawn.world; ++r) {
      of_ranks.push_back(gradient(drawn, r, step, 0));
      for (int k = 1; k < drawn.backwards; ++k)
        of_ranks.back() = plus(std::move(of_ranks.back()),
                               gradient(drawn, r, step, k), accumulated);
    }
    // Sums of fp32 travel in the type that was asked for.
    const DType wire = accumulated != DType::kFloat32 || drawn.world == 1
                           ? accumulated
                           : o.communication_dtype.value_or(o.dtype);
    for (auto& values : of_ranks) values = as(values, wire);
    return as(reduced(of_ranks, wire != DType::kFloat32), wire);
  }
  std::vector<float> sum;
  for (int k = 0; k < drawn.backwards; ++k) {
    of_ranks.clear();
    for (int r = 0; r < drawn.world; ++r)
      of_ranks.push_back(gradient(drawn, r, step, k));
    const bool stays_wide =
        drawn.backwards > 1 && o.accumulation_dtype == DType::kFloat32;
    auto mean = as(reduced(of_ranks, is_16_bit),
                   stays_wide ? DType::kFloat32 : o.dtype);
    sum = k == 0 ? std::move(mean) : plus(std::move(sum), mean, accumulated);
  }
  return sum;
}

// The same without shards, of gradients that are averaged already.
Seen plain(const AnyZero& drawn) {
  Seen seen;
  comm::run_local_ranks(1, [&](comm::Communicator& alone) {
    const ZeroOptions& o = drawn.options;
    const auto start = test::normal(drawn.layout.size(), 3);
    auto masters = start;
    optim::Adam rule(drawn.layout, {.weight_decay = 0.1});
    ThreadPool pool(1);
    const bool is_sum =
        o.dtype == DType::kFloat32 ||
        (o.stage == 1 && drawn.backwards > 1 && drawn.world > 1 &&
         o.accumulation_dtype == DType::kFloat32 &&
         o.communication_dtype.value_or(o.dtype) == DType::kFloat32);
    const double scale =
        o.dtype == DType::kFloat16 ? o.loss_scale.initial_scale : 1;
    const double divisor = scale * (is_sum ? drawn.world : 1);
    for (int step = 0; step < kSteps; ++step) {
      const auto grads = plain_window(drawn, step);
      if (step == 0) {
        seen.gradients.push_back(grads);
        for (float& value : seen.gradients.back())
          value = static_cast<float>(value / divisor);
      }
      // Only for the norm, and in a group of one.
      auto same = grads;
      std::vector<float> unused(grads.size());
      optim::DataParallel norm(alone, std::make_unique<optim::Adam>(
                                          drawn.layout, optim::AdamOptions{}));
      const double length =
          norm.step({.params = unused, .grads = same, .loss_scale = divisor})
              .grad_norm;
      seen.norms.push_back(length);
      const double most = o.exchange.max_grad_norm;
      const double factor = most > 0 && length > most ? most / length : 1.0;
      rule.apply(step + 1,
                 {.params = masters,
                  .grads = grads,
                  .grad_scale = static_cast<float>(factor / divisor)},
                 pool);
      seen.values.push_back(as(masters, o.dtype));
    }
  });
  return seen;
}

RC_GTEST_PROP(AnyZero, HasTheBitsOfPlainLoops, ()) {
  AnyZero drawn = any_zero();
  drawn.is_lamb = false;
  const Seen want = plain(drawn);
  std::vector<Seen> seen(static_cast<std::size_t>(drawn.world));
  comm::run_local_ranks(drawn.world,
                        [&](comm::Communicator& comm) {
                          seen[static_cast<std::size_t>(comm.rank())] =
                              test::sharded(comm, drawn);
                        },
                        {.timeout = std::chrono::seconds(60)});
  for (const Seen& rank : seen) {
    RC_ASSERT(rank.gradients == want.gradients);
    RC_ASSERT(rank.norms == want.norms);
    RC_ASSERT(rank.values == want.values);
  }
}

// And for one backward those of data parallelism itself.
RC_GTEST_PROP(AnyZero, HasTheBitsOfDataParallelism, ()) {
  AnyZero drawn = any_zero();
  drawn.backwards = 1;
  const ZeroOptions& o = drawn.options;
  comm::run_local_ranks(
      drawn.world,
      [&](comm::Communicator& comm) {
        const Seen seen = test::sharded(comm, drawn);
        Buffer params =
            test::rounded(test::normal(drawn.layout.size(), 3), o.dtype);
        optim::ExchangeOptions exchange = o.exchange;
        exchange.bucket_elements = 5000;
        std::unique_ptr<optim::Optimizer> optimizer =
            std::make_unique<optim::DataParallel>(
                comm, test::rule_of(drawn, drawn.layout), exchange);
        if (o.dtype != DType::kFloat32)
          optimizer = std::make_unique<precision::MixedPrecision>(
              comm, drawn.layout, std::move(optimizer),
              test::normal(drawn.layout.size(), 3),
              precision::MixedPrecisionOptions{.dtype = o.dtype,
                                               .loss_scale = o.loss_scale});
        for (int step = 0; step < kSteps; ++step) {
          Buffer grads =
              test::rounded(gradient(drawn, comm.rank(), step, 0), o.dtype);
          const auto report = optimizer->step(params.view(), grads.view());
          const auto at = static_cast<std::size_t>(step);
          if (seen.norms[at] != report.grad_norm ||
              seen.values[at] != test::floats_of(params.view()))
            throw std::runtime_error("other bits in step " +
                                     std::to_string(step));
        }
      },
      {.timeout = std::chrono::seconds(60)});
}

}  // namespace
}  // namespace thinwire::zero
