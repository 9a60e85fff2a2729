// SPDX-License-Identifier: Apache-2.0
// Any layout, rule, world, bucket size, dtype, stage and order of gradients:
// what is averaged is what plain loops over all ranks' gradients give, bit for
// bit.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "thinwire/optim/data_parallel.h"
#include "zero/support.h"

namespace thinwire::zero::property_test {
namespace {

using test::ZeroRun;

constexpr int kSteps = 2;

struct AnyZero {
  ParameterLayout layout;
  int world = 1;
  ZeroOptions options;
  int backwards = 1;
  unsigned seed = 0;
  bool leaves_out = false;
  bool is_lamb = false;
};

AnyZero any_zero() {
  AnyZero drawn;
  const auto sizes = *rc::gen::resize(
      8, rc::gen::container<std::vector<std::size_t>>(rc::gen::oneOf(
             rc::gen::inRange<std::size_t>(0, 40),
             rc::gen::inRange<std::size_t>(0, 5001),
             rc::gen::element<std::size_t>(1023, 1024, 1025, 2048))));
  const auto groups = *rc::gen::inRange<std::size_t>(1, 4);
  std::vector<ParameterSpec> specs;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    specs.push_back({"p" + std::to_string(i),
                     {sizes[i]},
                     *rc::gen::inRange<std::size_t>(0, groups)});
  drawn.layout = ParameterLayout::of(std::move(specs), groups);
  drawn.world = *rc::gen::element(1, 2, 3, 4, 8);
  drawn.backwards = *rc::gen::inRange(1, 4);
  drawn.seed = *rc::gen::inRange(0u, 1000u);
  drawn.leaves_out = *rc::gen::arbitrary<bool>();
  drawn.is_lamb = *rc::gen::arbitrary<bool>();
  ZeroOptions& o = drawn.options;
  o.stage = *rc::gen::element(1, 2);
  o.dtype =
      *rc::gen::element(DType::kFloat32, DType::kFloat16, DType::kBFloat16);
  o.loss_scale = {.initial_scale = *rc::gen::element(1.0, 64.0),
                  .dynamic = false};
  o.exchange = {
      .max_grad_norm = *rc::gen::element(0.0, 0.5),
      .bucket_elements = *rc::gen::element<std::size_t>(1, 2000, 3072, 1 << 20),
      .verify_every = *rc::gen::inRange<std::int64_t>(0, 2),
      .num_threads = *rc::gen::element(1, 2)};
  o.overlap = *rc::gen::arbitrary<bool>();
  o.accumulation_dtype =
      *rc::gen::element(DType::kFloat32, drawn.options.dtype);
  if (*rc::gen::arbitrary<bool>()) o.communication_dtype = DType::kFloat32;
  return drawn;
}

// Whether a rank has a gradient of a parameter in a backward.
bool is_there(const AnyZero& drawn, int rank, int step, int k, std::size_t i) {
  std::mt19937 random(drawn.seed + 131u * static_cast<unsigned>(i) +
                      17u * static_cast<unsigned>(rank) +
                      7u * static_cast<unsigned>(k) +
                      3u * static_cast<unsigned>(step));
  return !drawn.leaves_out || random() % 3 != 0;
}

// One rank's gradient of one backward, loss scale and rounding included.
std::vector<float> gradient(const AnyZero& drawn, int rank, int step, int k) {
  auto values = test::normal(
      drawn.layout.size(),
      drawn.seed + static_cast<unsigned>(1000 * step + 100 * k + rank));
  const auto scale =
      static_cast<float>(drawn.options.dtype == DType::kFloat16
                             ? drawn.options.loss_scale.initial_scale
                             : 1);
  const auto parameters = drawn.layout.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const float factor = is_there(drawn, rank, step, k, i) ? scale : 0;
    for (std::size_t at = 0; at < parameters[i].size; ++at)
      values[parameters[i].offset + at] *= factor;
  }
  return test::floats_of(test::rounded(values, drawn.options.dtype).view());
}

std::unique_ptr<optim::UpdateRule> rule_of(const AnyZero& drawn,
                                           const ParameterLayout& of) {
  return (drawn.is_lamb ? test::lamb_rule({.weight_decay = 0.1})
                        : test::adam_rule({.weight_decay = 0.1}))(of);
}

/// One rank's results.
struct Seen {
  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<float>> values;
  std::vector<double> norms;
  bool operator==(const Seen&) const = default;
};

Seen sharded(comm::Communicator& comm, const AnyZero& drawn) {
  ZeroRun run(
      comm, drawn.layout,
      [&drawn](const ParameterLayout& shard) { return rule_of(drawn, shard); },
      drawn.options);
  Seen seen;
  const auto parameters = drawn.layout.parameters();
  std::vector<std::size_t> order(parameters.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(drawn.seed + static_cast<unsigned>(comm.rank()));
  for (int step = 0; step < kSteps; ++step) {
    for (int k = 0; k < drawn.backwards; ++k) {
      std::shuffle(order.begin(), order.end(), random);
      const auto values = gradient(drawn, comm.rank(), step, k);
      run.optimizer->gradients().begin(
          {.is_first = k == 0, .is_last = k + 1 == drawn.backwards});
      for (const std::size_t i : order) {
        if (!is_there(drawn, comm.rank(), step, k, i)) continue;
        const Parameter& p = parameters[i];
        // It may go at once, and come in fp32 too.
        const Buffer own =
            test::rounded(ConstView(values).subview(p.offset, p.size),
                          i % 2 == 0 ? drawn.options.dtype : DType::kFloat32);
        run.optimizer->gradients().collect(i, own.view());
      }
      run.optimizer->gradients().end();
    }
    if (step == 0) seen.gradients.push_back(run.gradient());
    seen.norms.push_back(run.optimizer->step().grad_norm);
    seen.values.push_back(run.values());
  }
  return seen;
}

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
    const auto rule = rule_of(drawn, drawn.layout);
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
      rule->apply(step + 1,
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
  const AnyZero drawn = any_zero();
  const Seen want = plain(drawn);
  std::vector<Seen> seen(static_cast<std::size_t>(drawn.world));
  comm::run_local_ranks(drawn.world,
                        [&](comm::Communicator& comm) {
                          seen[static_cast<std::size_t>(comm.rank())] =
                              sharded(comm, drawn);
                        },
                        {.timeout = std::chrono::seconds(60)});
  for (const Seen& rank : seen) {
    RC_ASSERT(rank.gradients == want.gradients);
    RC_ASSERT(rank.norms == want.norms);
    RC_ASSERT(rank.values == want.values);
  }
}

}  // namespace
}  // namespace thinwire::zero::property_test
