// SPDX-License-Identifier: Apache-2.0
// Sharded training with everything drawn by rapidcheck.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <random>
#include <vector>

#include "zero/support.h"

namespace thinwire::test {

inline constexpr int kAnyZeroSteps = 2;

struct AnyZero {
  ParameterLayout layout;
  int world = 1;
  ZeroOptions options;
  int backwards = 1;
  unsigned seed = 0;
  bool leaves_out = false;
  bool is_lamb = false;
};

inline AnyZero any_zero() {
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
inline bool is_there(const AnyZero& drawn, int rank, int step, int k,
                     std::size_t i) {
  std::mt19937 random(drawn.seed + 131u * static_cast<unsigned>(i) +
                      17u * static_cast<unsigned>(rank) +
                      7u * static_cast<unsigned>(k) +
                      3u * static_cast<unsigned>(step));
  return !drawn.leaves_out || random() % 3 != 0;
}

// One rank's gradient of one backward, loss scale and rounding included.
inline std::vector<float> gradient(const AnyZero& drawn, int rank, int step,
                                   int k) {
  auto values =
      normal(drawn.layout.size(),
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
  return floats_of(rounded(values, drawn.options.dtype).view());
}

inline std::unique_ptr<optim::UpdateRule> rule_of(const AnyZero& drawn,
                                                  const ParameterLayout& of) {
  return (drawn.is_lamb ? lamb_rule({.weight_decay = 0.1})
                        : adam_rule({.weight_decay = 0.1}))(of);
}

/// One rank's results.
struct Seen {
  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<float>> values;
  std::vector<double> norms;
  bool operator==(const Seen&) const = default;
};

inline Seen sharded(comm::Communicator& comm, const AnyZero& drawn) {
  ZeroRun run(
      comm, drawn.layout,
      [&drawn](const ParameterLayout& shard) { return rule_of(drawn, shard); },
      drawn.options);
  Seen seen;
  const auto parameters = drawn.layout.parameters();
  std::vector<std::size_t> order(parameters.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(drawn.seed + static_cast<unsigned>(comm.rank()));
  for (int step = 0; step < kAnyZeroSteps; ++step) {
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
            rounded(ConstView(values).subview(p.offset, p.size),
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

}  // namespace thinwire::test
